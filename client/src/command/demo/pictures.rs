//! The demo's pictures: the photograph, what the functions made of it, and what the CNN sees.

use std::fs::File;
use std::io::{BufWriter, Cursor, Write};
use std::path::Path;

use pappus_client::Error;
use pappus_kernels::bytes::to_elements;
use pappus_kernels::photo;
use png::{ColorType, Decoder};

use super::Workload;
use crate::failure::{Failure, Result};
use crate::picture;

/// The photograph's pixels, RGB.
pub(super) fn photo() -> Result<Vec<u8>> {
    let broken =
        |error: png::DecodingError| Failure::Failed(format!("the photograph in this program: {error}"));
    let mut reader = Decoder::new(Cursor::new(photo::PNG)).read_info().map_err(broken)?;
    let mut rgb = vec![0; (photo::WIDTH * photo::HEIGHT * 3) as usize];
    reader.next_frame(&mut rgb).map_err(broken)?;
    Ok(rgb)
}

/// The middle `side` × `side` pixels in whole shades of gray from 0 to 255, as a float matrix.
pub(super) fn centre(side: u64) -> Result<Vec<f32>> {
    let rgb = photo()?;
    let side = side.min(photo::WIDTH).min(photo::HEIGHT);
    let (left, top) = ((photo::WIDTH - side) / 2, (photo::HEIGHT - side) / 2);
    let mut matrix = vec![side as f32; 2];
    for row in top..top + side {
        let start = ((row * photo::WIDTH + left) * 3) as usize;
        let pixels = rgb[start..start + side as usize * 3].chunks_exact(3);
        // The weights of ITU-R BT.601.
        matrix.extend(pixels.map(|pixel| {
            let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(f32::from);
            (0.299 * red + 0.587 * green + 0.114 * blue).round()
        }));
    }
    Ok(matrix)
}

/// Writes the pictures that belong to a workload, if any, and says where they are.
pub(super) fn save(
    workload: &Workload,
    outputs: &[Vec<u8>],
    folder: &Path,
    out: &mut dyn Write,
) -> Result<()> {
    let (width, height) = (photo::WIDTH, photo::HEIGHT);
    let mut save = |name: &str, size: (u64, u64), colours, pixels: &[u8]| {
        let path = folder.join(name);
        write(&path, size, colours, pixels)?;
        Ok::<(), Failure>(writeln!(out, "  → {}", path.display())?)
    };
    match (workload.function, outputs) {
        ("picture", [drawing, edges]) => {
            save("photo.png", (width, height), ColorType::Rgb, &photo()?)?;
            save("drawing.png", (width, height), ColorType::Rgb, drawing)?;
            save("edges.png", (width, height), ColorType::Grayscale, edges)
        }
        ("inference", [features]) => {
            let (size, pixels) = feature_map(&to_elements(features));
            save("features.png", size, ColorType::Grayscale, &pixels)
        }
        _ => Ok(()),
    }
}

/// A float matrix (rows, columns, values) as shades of gray: its least value is black, the greatest twentieth white,
/// lest a few bright pixels leave the others dark.
fn feature_map(matrix: &[f32]) -> ((u64, u64), Vec<u8>) {
    let [rows, cols, values @ ..] = matrix else {
        return ((0, 0), Vec::new());
    };
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let most = (sorted.len() * 19).div_ceil(20).saturating_sub(1);
    let least = sorted.first().copied().unwrap_or_default();
    let greatest = sorted.get(most).copied().unwrap_or_default();
    // All alike is black, not a division by zero.
    let range = (greatest - least).max(f32::MIN_POSITIVE);
    let pixels = values.iter().map(|value| ((value - least) / range * 255.0) as u8);
    ((*cols as u64, *rows as u64), pixels.collect())
}

fn write(path: &Path, (width, height): (u64, u64), colours: ColorType, pixels: &[u8]) -> Result<()> {
    let file = File::create(path).map_err(Error::file(path))?;
    picture::encode(path, (width as u32, height as u32), colours, pixels, BufWriter::new(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_maps_use_all_shades() {
        let (size, pixels) = feature_map(&[1.0, 3.0, -1.0, 0.0, 1.0]);
        assert_eq!((size, pixels), ((3, 1), vec![0, 127, 255]));
        assert_eq!(feature_map(&[1.0, 2.0, 7.0, 7.0]).1, [0, 0]);
        assert!(feature_map(&[]).1.is_empty() && feature_map(&[0.0, 0.0]).1.is_empty());
        // One pixel in twenty may outshine the rest.
        let mut glare: Vec<f32> = [1.0, 20.0].into_iter().chain((0..20).map(|value| value as f32)).collect();
        glare[21] = 1e9;
        assert_eq!(feature_map(&glare).1[17..], [240, 255, 255]);
    }

    #[test]
    fn the_centre_is_gray_and_has_the_side_it_states() {
        let matrix = centre(224).unwrap();
        assert_eq!((&matrix[..2], matrix.len()), (&[224.0, 224.0][..], 2 + 224 * 224));
        assert!(matrix[2..].iter().all(|gray| (0.0..=255.0).contains(gray) && gray.fract() == 0.0));
        assert_eq!(centre(10_000).unwrap()[0], photo::WIDTH as f32);
    }

    #[test]
    fn pictures_can_be_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("photo.png");
        let pixels = photo().unwrap();
        write(&path, (photo::WIDTH, photo::HEIGHT), ColorType::Rgb, &pixels).unwrap();
        let mut reader = Decoder::new(Cursor::new(std::fs::read(&path).unwrap())).read_info().unwrap();
        let mut again = vec![0; pixels.len()];
        reader.next_frame(&mut again).unwrap();
        assert!(again == pixels);
    }
}
