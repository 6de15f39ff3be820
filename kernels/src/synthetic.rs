//! Code objects of AMD's with whatever kernels a test or a measurement wants, laid out as a linker does it. Their code
//! is nothing but an end.

/// An object to be.
#[derive(Debug, Clone)]
pub struct CodeObject {
    /// The target in the object's note, such as `gfx90a`.
    pub target: String,
    /// The target in the object's header.
    pub flags: u32,
    /// The version of the format in its header: 2 means version 4 of code objects.
    pub abi_version: u8,
    /// Its kernels.
    pub kernels: Vec<Kernel>,
    /// Bytes of code, if there are to be more than the kernels need.
    pub code_bytes: usize,
    /// Variables without initial values: their names and bytes.
    pub variables: Vec<(String, u64)>,
}

/// A kernel to be.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// Offset, bytes and kind of each argument.
    pub arguments: Vec<(u32, u32, &'static str)>,
    /// Bytes of all arguments.
    pub kernarg_bytes: u32,
    /// Bytes of shared memory.
    pub lds_bytes: u32,
    /// Bytes of stack.
    pub private_bytes: u32,
    /// What else its note tells.
    pub more: Vec<(&'static str, Value)>,
}

/// A value of MessagePack.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Value {
    Number(u64),
    Flag(bool),
    Text(String),
    Array(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(small @ 0..=127) => out.push(*small as u8),
            Self::Number(number) => {
                out.push(0xcf);
                out.extend(number.to_be_bytes());
            }
            Self::Flag(flag) => out.push(0xc2 + u8::from(*flag)),
            Self::Text(text) => {
                out.push(0xdb);
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text.as_bytes());
            }
            Self::Array(values) => {
                out.push(0xdd);
                out.extend((values.len() as u32).to_be_bytes());
                values.iter().for_each(|value| value.write(out));
            }
            Self::Map(pairs) => {
                out.push(0xdf);
                out.extend((pairs.len() as u32).to_be_bytes());
                for (key, value) in pairs {
                    Self::Text(key.clone()).write(out);
                    value.write(out);
                }
            }
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

fn map(pairs: Vec<(&str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

impl Kernel {
    /// A kernel that takes these arguments.
    pub fn new(name: &str, arguments: &[(u32, u32, &'static str)]) -> Self {
        Self {
            name: name.to_owned(),
            kernarg_bytes: arguments.iter().map(|(offset, bytes, _)| offset + bytes).max().unwrap_or(0),
            arguments: arguments.to_vec(),
            lds_bytes: 0,
            private_bytes: 0,
            more: Vec::new(),
        }
    }

    fn note(&self) -> Value {
        let argument = |(offset, bytes, kind): &(u32, u32, &str)| {
            map(vec![
                (".offset", (*offset).into()),
                (".size", (*bytes).into()),
                (".value_kind", (*kind).into()),
            ])
        };
        let mut pairs = vec![
            (".args", Value::Array(self.arguments.iter().map(argument).collect())),
            (".group_segment_fixed_size", self.lds_bytes.into()),
            (".kernarg_segment_align", 8.into()),
            (".kernarg_segment_size", self.kernarg_bytes.into()),
            (".max_flat_workgroup_size", 1024.into()),
            (".name", (&*self.name).into()),
            (".private_segment_fixed_size", self.private_bytes.into()),
            (".sgpr_count", 16.into()),
            (".symbol", (&*format!("{}.kd", self.name)).into()),
            (".vgpr_count", 8.into()),
            (".wavefront_size", 64.into()),
        ];
        for (key, value) in &self.more {
            pairs.retain(|(known, _)| known != key);
            pairs.push((key, value.clone()));
        }
        map(pairs)
    }
}

impl CodeObject {
    /// An object for gfx90a, as clang writes it.
    pub fn new(kernels: Vec<Kernel>) -> Self {
        Self {
            target: "gfx90a".to_owned(),
            flags: 0x53f,
            abi_version: 3,
            kernels,
            code_bytes: 0,
            variables: Vec::new(),
        }
    }

    /// What its note tells.
    pub fn note(&self) -> Value {
        let minor = if self.abi_version == 2 { 1 } else { 2 };
        map(vec![
            ("amdhsa.kernels", Value::Array(self.kernels.iter().map(Kernel::note).collect())),
            ("amdhsa.target", (&*format!("amdgcn-amd-amdhsa--{}", self.target)).into()),
            ("amdhsa.version", Value::Array(vec![1.into(), minor.into()])),
        ])
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut note = Vec::new();
        self.note().write(&mut note);
        self.bytes_with(&note)
    }

    /// The file, with this note in place of its own.
    pub fn bytes_with(&self, content: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADER + 4 * SEGMENT];
        let note_at = file.len();
        for word in [7, content.len() as u32, 32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(b"AMDGPU\0\0");
        file.extend(content);
        pad(&mut file, 4);
        let note_end = file.len();
        pad(&mut file, 8);

        // Symbols: of each kernel its code and its descriptor, and the variables.
        let code_bytes = (self.kernels.len() * CODE).max(self.code_bytes).max(CODE);
        let count = 1 + 2 * self.kernels.len() + self.variables.len();
        let symbols_at = file.len();
        let names_at = symbols_at + count * SYMBOL;
        let mut names = vec![0];
        let mut name = |text: &str| {
            let at = names.len() as u32;
            names.extend(text.as_bytes());
            names.push(0);
            at
        };
        let of_kernels: Vec<_> = self
            .kernels
            .iter()
            .map(|kernel| (name(&kernel.name), name(&format!("{}.kd", kernel.name))))
            .collect();
        let of_variables: Vec<_> = self.variables.iter().map(|(text, _)| name(text)).collect();
        let rodata_at = (names_at + names.len()).next_multiple_of(64);
        let rodata_end = rodata_at + self.kernels.len() * DESCRIPTOR;
        let code_at = rodata_end.next_multiple_of(256);
        let code_address = (code_at + 0x1000) as u64;
        let data_address = (code_address + code_bytes as u64 + 0x1000).next_multiple_of(0x1000);
        let mut symbol = |name: u32, kind: u8, section: u16, address: u64, bytes: u64| {
            file.extend(name.to_le_bytes());
            file.extend([1 << 4 | kind, 0]);
            file.extend(section.to_le_bytes());
            file.extend(address.to_le_bytes());
            file.extend(bytes.to_le_bytes());
        };
        symbol(0, 0, 0, 0, 0);
        for (at, (code, descriptor)) in of_kernels.iter().enumerate() {
            symbol(*code, 2, TEXT, code_address + (at * CODE) as u64, 4);
            symbol(*descriptor, 1, RODATA, (rodata_at + at * DESCRIPTOR) as u64, DESCRIPTOR as u64);
        }
        let mut variable_at = data_address;
        for (name, (_, bytes)) in of_variables.iter().zip(&self.variables) {
            symbol(*name, 1, BSS, variable_at, *bytes);
            variable_at += bytes;
        }
        file.extend(&names);

        file.resize(rodata_at, 0);
        for (at, kernel) in self.kernels.iter().enumerate() {
            let mut descriptor = [0; DESCRIPTOR];
            for (place, word) in
                [kernel.lds_bytes, kernel.private_bytes, kernel.kernarg_bytes].iter().enumerate()
            {
                descriptor[4 * place..][..4].copy_from_slice(&word.to_le_bytes());
            }
            let from = (rodata_at + at * DESCRIPTOR) as u64;
            let to = code_address + (at * CODE) as u64;
            descriptor[16..24].copy_from_slice(&to.wrapping_sub(from).to_le_bytes());
            file.extend(descriptor);
        }
        file.resize(code_at, 0);
        // s_endpgm, and s_code_end behind it.
        for at in 0..code_bytes / 4 {
            let word: u32 = if at * 4 % CODE == 0 { 0xbf81_0000 } else { 0xbf9f_0000 };
            file.extend(word.to_le_bytes());
        }
        pad(&mut file, 8);

        let section_names = b"\0.note\0.dynsym\0.dynstr\0.rodata\0.text\0.bss\0.shstrtab\0";
        let section_names_at = file.len();
        file.extend(section_names);
        pad(&mut file, 8);
        let sections_at = file.len();
        let data_bytes = variable_at - data_address;
        let note = [note_at as u64, (note_end - note_at) as u64];
        let names_size = names.len() as u64;
        for (text, kind, flags, address, at, bytes, link, entry) in [
            ("", 0, 0, 0, 0, 0, 0, 0),
            (".note", 7, 2, note[0], note[0], note[1], 0, 0),
            (
                ".dynsym",
                11,
                2,
                symbols_at as u64,
                symbols_at as u64,
                (count * SYMBOL) as u64,
                3,
                SYMBOL as u64,
            ),
            (".dynstr", 3, 2, names_at as u64, names_at as u64, names_size, 0, 0),
            (".rodata", 1, 2, rodata_at as u64, rodata_at as u64, (rodata_end - rodata_at) as u64, 0, 0),
            (".text", 1, 6, code_address, code_at as u64, code_bytes as u64, 0, 0),
            (".bss", 8, 3, data_address, section_names_at as u64, data_bytes, 0, 0),
            (".shstrtab", 3, 0, 0, section_names_at as u64, section_names.len() as u64, 0, 0),
        ] {
            let pattern = format!("\0{text}\0");
            let found = section_names.windows(pattern.len()).position(|window| window == pattern.as_bytes());
            let name = found.map_or(0, |at| at as u32 + 1);
            file.extend(name.to_le_bytes());
            file.extend(u32::to_le_bytes(kind));
            for number in [flags, address, at, bytes] {
                file.extend(u64::to_le_bytes(number));
            }
            file.extend(u32::to_le_bytes(link));
            file.extend(u32::to_le_bytes(0));
            file.extend(u64::to_le_bytes(1));
            file.extend(u64::to_le_bytes(entry));
        }

        let mut head = Vec::with_capacity(HEADER + 4 * SEGMENT);
        head.extend(b"\x7fELF\x02\x01\x01\x40");
        head.push(self.abi_version);
        head.resize(16, 0);
        head.extend(u16::to_le_bytes(3));
        head.extend(u16::to_le_bytes(224));
        head.extend(u32::to_le_bytes(1));
        for number in [0, HEADER as u64, sections_at as u64] {
            head.extend(u64::to_le_bytes(number));
        }
        head.extend(self.flags.to_le_bytes());
        for number in [HEADER as u16, SEGMENT as u16, 4, 64, 8, 7] {
            head.extend(number.to_le_bytes());
        }
        for (kind, flags, at, address, bytes, in_memory) in [
            (1, 4, 0, 0, rodata_end as u64, rodata_end as u64),
            (1, 5, code_at as u64, code_address, code_bytes as u64, code_bytes as u64),
            (1, 6, section_names_at as u64, data_address, 0, data_bytes),
            (4, 4, note[0], note[0], note[1], note[1]),
        ] {
            head.extend(u32::to_le_bytes(kind));
            head.extend(u32::to_le_bytes(flags));
            for number in [at, address, address, bytes, in_memory, 0x1000] {
                head.extend(u64::to_le_bytes(number));
            }
        }
        file[..head.len()].copy_from_slice(&head);
        file
    }
}

/// A bundle of clang's with these entries: id and code object.
pub fn bundle(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let head = 32 + entries.iter().map(|(id, _)| 24 + id.len()).sum::<usize>();
    let mut file = b"__CLANG_OFFLOAD_BUNDLE__".to_vec();
    file.extend((entries.len() as u64).to_le_bytes());
    let mut at = head.next_multiple_of(0x1000);
    for (id, object) in entries {
        for number in [at, object.len(), id.len()] {
            file.extend((number as u64).to_le_bytes());
        }
        file.extend(id.as_bytes());
        at = (at + object.len()).next_multiple_of(0x1000);
    }
    for (_, object) in entries {
        pad(&mut file, 0x1000);
        file.extend(*object);
    }
    file
}

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SYMBOL: usize = 24;
const DESCRIPTOR: usize = 64;
/// Bytes of a kernel's code.
const CODE: usize = 256;
/// Positions of sections.
const RODATA: u16 = 4;
const TEXT: u16 = 5;
const BSS: u16 = 6;

fn pad(file: &mut Vec<u8>, to: usize) {
    file.resize(file.len().next_multiple_of(to), 0);
}
