//! Fences one file and checks what came out: `fence IN.ptx OUT.ptx`. Prints variables, or every reason why not.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        eprintln!("usage: fence IN.ptx OUT.ptx");
        return ExitCode::FAILURE;
    };
    let text = match std::fs::read_to_string(from) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{from}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match pappus_fence::fence(&text) {
        Ok(fenced) => {
            for variable in &fenced.variables {
                println!("{from}: {} at {:#x}, {} bytes", variable.name, variable.offset, variable.size);
            }
            println!("{from}: clears shared memory in {}", fenced.clearing.join(" "));
            if let Err(unfenced) = pappus_fence::check(&fenced.text) {
                println!("{from}: not accepted: {unfenced}");
                return ExitCode::FAILURE;
            }
            match std::fs::write(to, &fenced.text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{to}: {error}");
                    ExitCode::FAILURE
                }
            }
        }
        Err(_) => {
            for reason in pappus_fence::reasons(&text) {
                println!("{from}: {reason}");
            }
            ExitCode::FAILURE
        }
    }
}
