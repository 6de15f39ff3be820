//! What files hold, by the ends of their names; and PNG pictures as arrays of bytes: rows, columns, and where there are
//! several, channels.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use pappus_blueprint::{DType, Shape};
use pappus_client::Error;
use png::{BitDepth, ColorType, Decoder, Encoder, Limits, Transformations};

use crate::failure::{Failure, Result};

/// The most that the pixels of a picture may take.
const MAX_PICTURE_BYTES: usize = 256 << 20;

/// How a file holds an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// As bytes, or behind the header of a `.npy` file.
    Plain,
    /// As the pixels of a picture.
    Png,
}

/// Kinds of files that hold arrays in ways that are not read here, and how to make one that is.
const OTHERS: [(&str, &str); 8] = [
    ("jpg", "a JPEG picture: `convert photo.jpg photo.png` makes one that is read"),
    ("jpeg", "a JPEG picture: `convert photo.jpeg photo.png` makes one that is read"),
    ("npz", "an archive of arrays: numpy.save('a.npy', numpy.load('a.npz')['a']) takes one of them out"),
    ("gif", "a picture: PNG is read"),
    ("webp", "a picture: PNG is read"),
    ("bmp", "a picture: PNG is read"),
    ("pt", "pickled tensors: numpy.save('a.npy', tensor.numpy()) makes an array"),
    ("safetensors", "several tensors: numpy.save('a.npy', tensor.numpy()) takes one of them out"),
];

impl Format {
    /// By the end of a file's name. Files are refused whose bytes are no array, and which nobody means as they are.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        match OTHERS.iter().find(|(other, _)| *other == extension) {
            Some((_, what)) => Err(Failure::Refused(format!(
                "{}: {what}; its bytes as they are pass through a pipe: NAME=- < FILE",
                path.display()
            ))),
            None if extension == "png" => Ok(Self::Png),
            None => Ok(Self::Plain),
        }
    }

    /// The same of a file that an output is written to.
    pub(crate) fn to_write(path: &Path, output: &str) -> Result<Self> {
        Self::of(path).map_err(|_| {
            Failure::Refused(format!(
                "{}: output {output:?} is not written in this form: a picture goes to a .png, an array to a .npy, bytes to any \
                 other name",
                path.display()
            ))
        })
    }
}

/// The pixels of a picture, and their rows, columns, and where there are several, channels.
pub(crate) fn read(path: &Path) -> Result<(Vec<u8>, Vec<u64>)> {
    let wrong = |why: String| Failure::Refused(format!("{}: {why}", path.display()));
    let broken = |why: png::DecodingError| wrong(format!("no PNG picture that can be read: {why}"));
    let file = BufReader::new(File::open(path).map_err(Error::file(path))?);
    let mut decoder = Decoder::new_with_limits(file, Limits { bytes: MAX_PICTURE_BYTES });
    // Palettes become colours, and few bits eight.
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(broken)?;
    let bytes = reader.output_buffer_size().filter(|bytes| *bytes <= MAX_PICTURE_BYTES);
    let bytes =
        bytes.ok_or_else(|| wrong(format!("a picture of more than {} MiB", MAX_PICTURE_BYTES >> 20)))?;
    let mut pixels = vec![0; bytes];
    let frame = reader.next_frame(&mut pixels).map_err(broken)?;
    if frame.bit_depth != BitDepth::Eight {
        return Err(wrong("a picture of 16 bits a channel: 8 are read".into()));
    }
    pixels.truncate(frame.buffer_size());
    let channels = frame.color_type.samples() as u64;
    let mut dims = vec![u64::from(frame.height), u64::from(frame.width)];
    if channels > 1 {
        dims.push(channels);
    }
    Ok((pixels, dims))
}

/// Rows, columns and colours of an array that a picture can hold.
fn size(path: &Path, name: &str, shape: Option<&Shape>) -> Result<(u32, u32, ColorType)> {
    let found = shape.filter(|shape| shape.dtype == DType::U8).and_then(|shape| {
        let (rows, columns, channels) = match shape.dims[..] {
            [rows, columns] => (rows, columns, 1),
            [rows, columns, channels] => (rows, columns, channels),
            _ => return None,
        };
        let colours = match channels {
            1 => ColorType::Grayscale,
            2 => ColorType::GrayscaleAlpha,
            3 => ColorType::Rgb,
            4 => ColorType::Rgba,
            _ => return None,
        };
        let side = |side: u64| u32::try_from(side).ok().filter(|side| *side > 0);
        Some((side(rows)?, side(columns)?, colours))
    });
    found.ok_or_else(|| {
        let what = match shape {
            None => "what the blueprint does not say".to_owned(),
            Some(Shape { dtype, dims }) => {
                let dims: Vec<_> = dims.iter().map(u64::to_string).collect();
                format!("{}[{}]", dtype.name(), dims.join(","))
            }
        };
        Failure::Refused(format!(
            "{}: a picture holds u8[rows,columns] or u8[rows,columns,channels], output {name:?} is {what}: write a .npy \
             file",
            path.display()
        ))
    })
}

/// Checks that an output of this shape can be written as a picture.
pub(crate) fn check(path: &Path, name: &str, shape: Option<&Shape>) -> Result<()> {
    size(path, name, shape).map(|_| ())
}

/// Writes one.
pub(crate) fn write(
    path: &Path,
    name: &str,
    shape: Option<&Shape>,
    pixels: &[u8],
    to: &mut dyn Write,
) -> Result<()> {
    let (rows, columns, colours) = size(path, name, shape)?;
    encode(path, (columns, rows), colours, pixels, to)
}

/// Writes pixels of eight bits a channel.
pub(crate) fn encode(
    path: &Path,
    (columns, rows): (u32, u32),
    colours: ColorType,
    pixels: &[u8],
    to: impl Write,
) -> Result<()> {
    let mut encoder = Encoder::new(to, columns, rows);
    encoder.set_color(colours);
    encoder.set_depth(BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(pixels)?;
        writer.finish()
    });
    written.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dtype: DType, dims: &[u64]) -> Shape {
        Shape { dtype, dims: dims.to_vec() }
    }

    #[test]
    fn a_picture_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        for dims in [&[2, 3][..], &[2, 3, 3], &[1, 1, 4], &[4, 1, 2]] {
            let pixels: Vec<u8> = (0..dims.iter().product::<u64>()).map(|value| value as u8 * 7).collect();
            let mut file = File::create(&path).unwrap();
            write(&path, "B", Some(&shape(DType::U8, dims)), &pixels, &mut file).unwrap();
            assert_eq!(read(&path).unwrap(), (pixels, dims.to_vec()));
        }
    }

    #[test]
    fn what_is_no_picture_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        std::fs::write(&path, b"\x89PNG").unwrap();
        let why = read(&path).unwrap_err().to_string();
        assert!(why.contains("p.png: no PNG picture that can be read"), "{why}");
        for (dtype, dims) in
            [(DType::F32, &[2, 2][..]), (DType::U8, &[2]), (DType::U8, &[2, 2, 5]), (DType::U8, &[0, 2])]
        {
            let why = check(&path, "B", Some(&shape(dtype, dims))).unwrap_err().to_string();
            assert!(why.contains("output \"B\" is ") && why.contains("u8[rows,columns]"), "{why}");
        }
        assert!(check(&path, "B", None).unwrap_err().to_string().contains("the blueprint does not say"));
    }

    #[test]
    fn sixteen_bits_are_not_cut_to_eight() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.png");
        let mut encoder = Encoder::new(File::create(&path).unwrap(), 1, 1);
        encoder.set_color(ColorType::Grayscale);
        encoder.set_depth(BitDepth::Sixteen);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[1, 2]).unwrap();
        writer.finish().unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("16 bits a channel"));
    }

    #[test]
    fn files_that_hold_no_array_are_refused_by_name() {
        for (name, words) in [
            ("a.jpg", "a JPEG picture"),
            ("A.JPEG", "a JPEG picture"),
            ("w.npz", "numpy.load"),
            ("m.pt", "tensor"),
        ] {
            let why = Format::of(name.as_ref()).unwrap_err().to_string();
            assert!(why.starts_with(name) && why.contains(words) && why.contains("NAME=- < FILE"), "{why}");
        }
        let why = Format::to_write("d.jpg".as_ref(), "drawing").unwrap_err().to_string();
        assert!(why.starts_with("d.jpg: output \"drawing\"") && why.contains(".png"), "{why}");
        assert_eq!(Format::of("a.PNG".as_ref()).unwrap(), Format::Png);
        for name in ["a.npy", "a.bin", "png", "a"] {
            assert_eq!(Format::of(name.as_ref()).unwrap(), Format::Plain);
        }
    }
}
