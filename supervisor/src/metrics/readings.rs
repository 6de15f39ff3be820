//! What devices measure of themselves, written when somebody asks: a device has a series for a value that it knows, and none for
//! others.

use std::fmt::Write;

use pappus_protocol::from_worker::Reading;

/// Writes the series in Prometheus' text format.
pub fn write(readings: &[(&str, Reading)], text: &mut String) {
    let mut family = |name: &str, kind: &str, help: &str, value: fn(&Reading) -> Option<f64>| {
        let mut values =
            readings.iter().filter_map(|(device, reading)| Some((device, value(reading)?))).peekable();
        if values.peek().is_some() {
            // A text takes everything.
            let _ = writeln!(text, "# HELP pappus_device_{name} {help}\n# TYPE pappus_device_{name} {kind}");
        }
        for (device, value) in values {
            let _ = writeln!(text, "pappus_device_{name}{{device=\"{device}\"}} {value}");
        }
    };
    family(
        "energy_joules_total",
        "counter",
        "Energy that the device took since its driver was loaded",
        |device| device.energy_mj.map(|mj| mj as f64 / 1e3),
    );
    family("power_watts", "gauge", "Power that the device draws", |device| {
        device.power_mw.map(|mw| f64::from(mw) / 1e3)
    });
    family("utilization_ratio", "gauge", "Part of the time in which a kernel ran on the device", |device| {
        device.busy_percent.map(|percent| f64::from(percent) / 1e2)
    });
    let help = "Part of the time in which memory of the device was read or written";
    family("memory_utilization_ratio", "gauge", help, |device| {
        device.memory_busy_percent.map(|percent| f64::from(percent) / 1e2)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_device_knows_has_no_series() {
        let mut text = String::new();
        write(&[("cuda:0", Reading::default())], &mut text);
        assert_eq!(text, "");
        let full = Reading {
            energy_mj: Some(12_345),
            power_mw: Some(69_500),
            busy_percent: Some(7),
            memory_busy_percent: Some(0),
        };
        let some = Reading { power_mw: Some(70_000), ..Reading::default() };
        write(&[("cuda:0", full), ("cuda:1", some)], &mut text);
        let series: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                "pappus_device_energy_joules_total{device=\"cuda:0\"} 12.345",
                "pappus_device_power_watts{device=\"cuda:0\"} 69.5",
                "pappus_device_power_watts{device=\"cuda:1\"} 70",
                "pappus_device_utilization_ratio{device=\"cuda:0\"} 0.07",
                "pappus_device_memory_utilization_ratio{device=\"cuda:0\"} 0",
            ]
        );
        assert_eq!(text.matches("# TYPE pappus_device_").count(), 4, "{text}");
    }
}
