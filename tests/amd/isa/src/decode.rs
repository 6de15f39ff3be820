//! From words to instructions. Encodings are those of the chapter "Microcode Formats" of AMD's documents (see
//! [`crate::ops`]).

use std::fmt;

use crate::ops::{self, Op, find};

/// The architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// CDNA2: MI210, MI250.
    Gfx90a,
    /// CDNA3: MI300.
    Gfx942,
}

/// A source: a register or a constant, with the numbers of the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Src {
    /// 0 to 127 a scalar register, to 255 a constant, from 256 a vector register, from 512 an accumulation register.
    pub code: u16,
    /// Of a constant, its 32 bits.
    pub value: u32,
}

/// The scalar register VCC.
pub(crate) const VCC: u8 = 106;
/// The first vector register.
pub(crate) const VGPR: u16 = 256;
/// The first accumulation register.
pub(crate) const AGPR: u16 = 512;
const LITERAL: u32 = 255;

/// Which memory a FLAT instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Segment {
    /// Whichever the address lies in.
    #[default]
    Flat,
    Scratch,
    Global,
    /// By a resource of four scalar registers.
    Buffer,
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy)]
pub struct Inst {
    /// The operation; `None` for an unknown one, whose words are in `src`.
    pub op: Option<Op>,
    /// The destination, numbered like a source.
    pub(crate) dst: u16,
    /// The scalar destination beside it: carries, comparisons.
    pub(crate) sdst: u8,
    pub(crate) src: [Src; 3],
    /// Bits for sources: negated, absolute, op_sel, op_sel_hi, negated in the high half.
    pub(crate) neg: u8,
    pub(crate) abs: u8,
    pub(crate) sel: u8,
    pub(crate) sel_hi: u8,
    pub(crate) neg_hi: u8,
    pub(crate) omod: u8,
    pub(crate) clamp: bool,
    /// A constant, an offset, the condition of a comparison, a branch's distance.
    pub(crate) imm: i32,
    pub(crate) segment: Segment,
    /// Returns the old value (GLC of atomics), or writes EXEC (comparisons).
    pub(crate) flag: bool,
    /// The vector address is used: OFFEN, or SVE of scratch.
    pub(crate) offen: bool,
    /// Its words.
    pub(crate) words: u8,
}

/// An encoding that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The first words.
    pub words: [u32; 2],
    /// Of which encoding, and why.
    pub what: String,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction {:08x} {:08x} ({})", self.words[0], self.words[1], self.what)
    }
}

fn bits(word: u32, from: u32, count: u32) -> u32 {
    (word >> from) & ((1 << count) - 1)
}

fn signed(value: u32, bits: u32) -> i32 {
    ((value << (32 - bits)) as i32) >> (32 - bits)
}

impl Src {
    pub(crate) fn is_vector(self) -> bool {
        self.code >= VGPR
    }

    pub(crate) fn vgpr(number: u32) -> Self {
        Self { code: VGPR + number as u16, value: 0 }
    }

    fn sgpr(number: u32) -> Self {
        Self { code: number as u16, value: 0 }
    }

    fn constant(value: u32) -> Self {
        Self { code: LITERAL as u16, value }
    }

    /// The inline constants as 32 bits: section "Scalar ALU Operands".
    fn inline(code: u32) -> Option<u32> {
        Some(match code {
            128..=192 => code - 128,
            193..=208 => 192u32.wrapping_sub(code),
            240 => 0.5f32.to_bits(),
            241 => (-0.5f32).to_bits(),
            242 => 1f32.to_bits(),
            243 => (-1f32).to_bits(),
            244 => 2f32.to_bits(),
            245 => (-2f32).to_bits(),
            246 => 4f32.to_bits(),
            247 => (-4f32).to_bits(),
            248 => 0x3e22_f983,
            _ => return None,
        })
    }

    /// The 64 bits of a constant.
    pub(crate) fn wide(self) -> u64 {
        let float = f64::from(f32::from_bits(self.value)).to_bits();
        match self.code {
            128..=208 => self.value as i32 as i64 as u64,
            248 => 0x3fc4_5f30_6dc9_c882,
            240..=247 => float,
            _ => u64::from(self.value),
        }
    }
}

impl Inst {
    pub(crate) fn new(op: Op) -> Self {
        Self {
            op: Some(op),
            dst: 0,
            sdst: VCC,
            src: [Src::default(); 3],
            neg: 0,
            abs: 0,
            sel: 0,
            sel_hi: 0,
            neg_hi: 0,
            omod: 0,
            clamp: false,
            imm: 0,
            segment: Segment::Flat,
            flag: false,
            offen: false,
            words: 1,
        }
    }

    pub(crate) fn unknown(words: [u32; 2]) -> Self {
        let mut inst = Self::new(Op::S_NOP);
        inst.op = None;
        inst.src[0].value = words[0];
        inst.src[1].value = words[1];
        inst
    }
}

/// Reads sources, and the literal behind the instruction if one names it.
struct Reader<'a> {
    words: &'a [u32],
    literal: bool,
    /// Words of the instruction without literal.
    own: usize,
}

impl Reader<'_> {
    fn src(&mut self, code: u32) -> Result<Src, &'static str> {
        if code == LITERAL {
            self.literal = true;
            let value = *self.words.get(self.own).ok_or("ends before its literal")?;
            return Ok(Src::constant(value));
        }
        if let Some(value) = Src::inline(code) {
            return Ok(Src { code: code as u16, value });
        }
        match code {
            0..=107 | 108..=124 | 126 | 127 | 235..=238 | 251..=253 | 256..=511 => Ok(Src::sgpr(code)),
            249 => Err("SDWA"),
            250 => Err("DPP"),
            _ => Err("a source that is reserved"),
        }
    }

    fn length(&self) -> u8 {
        (self.own + usize::from(self.literal)) as u8
    }
}

/// Decodes the first instruction of `words`.
pub fn decode(words: &[u32], arch: Arch) -> Result<Inst, Unknown> {
    let first = words.first().copied().unwrap_or(0);
    let second = words.get(1).copied().unwrap_or(0);
    let unknown = |what: String| Unknown { words: [first, second], what };
    let (name, table, number, own, make): (_, &[(u16, Op)], u32, usize, Make) = encoding(first);
    if words.len() < own {
        return Err(unknown(format!("{name}: ends within it")));
    }
    let (op, inst) = match name {
        "VOP3" => return vop3(words, arch).map_err(|why| unknown(format!("VOP3 {number}: {why}"))),
        "VOPC" => compare(number).ok_or("unknown opcode"),
        _ => find(table, number).map(|op| (op, Inst::new(op))).ok_or("unknown opcode"),
    }
    .map_err(|why| unknown(format!("{name} {number}: {why}")))?;
    check_arch(op, arch).map_err(|why| unknown(format!("{name} {number}: {why}")))?;
    let mut reader = Reader { words, literal: false, own };
    let mut inst =
        make(inst, &mut reader, [first, second], arch).map_err(|why| unknown(format!("{op:?}: {why}")))?;
    inst.words = reader.length();
    Ok(inst)
}

type Make = fn(Inst, &mut Reader<'_>, [u32; 2], Arch) -> Result<Inst, &'static str>;

fn encoding(first: u32) -> (&'static str, &'static [(u16, Op)], u32, usize, Make) {
    match first >> 26 {
        0b11_0000 => ("SMEM", ops::SMEM, bits(first, 18, 8), 2, smem),
        0b11_0100 if bits(first, 23, 3) == 7 => ("VOP3P", ops::VOP3P, bits(first, 16, 7), 2, vop3p),
        0b11_0100 => ("VOP3", ops::VOP3, bits(first, 16, 10), 2, nothing),
        0b11_0110 => ("DS", ops::DS, bits(first, 17, 8), 2, ds),
        0b11_0111 if bits(first, 24, 1) == 1 => ("FLAT", ops::VATOMIC, bits(first, 18, 7), 2, flat),
        0b11_0111 => ("FLAT", ops::VMEM, bits(first, 18, 7), 2, flat),
        0b11_1000 if find(ops::CACHES, bits(first, 18, 7)).is_some() => {
            ("MUBUF", ops::CACHES, bits(first, 18, 7), 2, nothing)
        }
        0b11_1000 => ("MUBUF", ops::VMEM, bits(first, 18, 7), 2, mubuf),
        top if top >> 5 == 0 => match first >> 25 {
            0x3f => ("VOP1", ops::VOP1, bits(first, 9, 8), 1, vop1),
            0x3e => ("VOPC", ops::VOPC, bits(first, 17, 8), 1, vopc),
            number => ("VOP2", ops::VOP2, number, 1, vop2),
        },
        top if top >> 4 == 0b10 => match bits(first, 23, 7) {
            0x7d => ("SOP1", ops::SOP1, bits(first, 8, 8), 1, sop1),
            0x7e => ("SOPC", ops::SOPC, bits(first, 16, 7), 1, sopc),
            0x7f => ("SOPP", ops::SOPP, bits(first, 16, 7), 1, sopp),
            number if number >> 5 == 3 => ("SOPK", ops::SOPK, bits(first, 23, 5), 1, sopk),
            number => ("SOP2", ops::SOP2, number, 1, sop2),
        },
        _ => ("no encoding", &[], 0, 1, nothing),
    }
}

fn check_arch(op: Op, arch: Arch) -> Result<(), &'static str> {
    let only_cdna3 = matches!(op, Op::V_MOV_B64 | Op::V_LSHL_ADD_U64);
    if only_cdna3 && arch != Arch::Gfx942 { Err("only gfx942 has it") } else { Ok(()) }
}

fn nothing(mut inst: Inst, _: &mut Reader<'_>, _: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.words = 2;
    Ok(inst)
}

fn sop2(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.dst = bits(word, 16, 7) as u16;
    inst.src[0] = reader.src(bits(word, 0, 8))?;
    inst.src[1] = reader.src(bits(word, 8, 8))?;
    Ok(inst)
}

fn sopk(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.dst = bits(word, 16, 7) as u16;
    inst.imm = signed(bits(word, 0, 16), 16);
    inst.src[0] = Src::sgpr(bits(word, 16, 7));
    if inst.op == Some(Op::S_SETREG_IMM32_B32) {
        inst.src[0] = reader.src(LITERAL)?;
    }
    Ok(inst)
}

fn sop1(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.dst = bits(word, 16, 7) as u16;
    if inst.op != Some(Op::S_GETPC_B64) {
        inst.src[0] = reader.src(bits(word, 0, 8))?;
    }
    Ok(inst)
}

fn sopc(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.src[0] = reader.src(bits(word, 0, 8))?;
    inst.src[1] = reader.src(bits(word, 8, 8))?;
    Ok(inst)
}

fn sopp(mut inst: Inst, _: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.imm = signed(bits(word, 0, 16), 16);
    Ok(inst)
}

fn smem(mut inst: Inst, _: &mut Reader<'_>, [word, second]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.dst = bits(word, 6, 7) as u16;
    inst.src[0] = Src::sgpr(bits(word, 0, 6) * 2);
    let (soffset, imm) = (bits(word, 14, 1) == 1, bits(word, 17, 1) == 1);
    // With IMM the offset is in the second word, without it names a register; SOFFSET_EN adds another register.
    if imm {
        inst.imm = signed(bits(second, 0, 21), 21);
    }
    inst.offen = soffset || !imm;
    inst.src[1] = Src::sgpr(if soffset { bits(second, 25, 7) } else { bits(second, 0, 7) });
    Ok(inst)
}

fn vop2(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.dst = VGPR + bits(word, 17, 8) as u16;
    inst.src[0] = reader.src(bits(word, 0, 9))?;
    inst.src[1] = Src::vgpr(bits(word, 9, 8));
    inst.src[2] = Src::sgpr(u32::from(VCC));
    Ok(inst)
}

fn vop1(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.src[0] = reader.src(bits(word, 0, 9))?;
    vop1_destination(&mut inst, bits(word, 17, 8));
    Ok(inst)
}

fn vop1_destination(inst: &mut Inst, number: u32) {
    inst.dst = VGPR + number as u16;
    match inst.op {
        Some(Op::V_READFIRSTLANE_B32) => inst.dst = number as u16,
        Some(Op::V_ACCVGPR_MOV_B32) => {
            inst.dst = AGPR + number as u16;
            inst.src[0].code += AGPR - VGPR;
        }
        _ => {}
    }
}

/// The family of a comparison, with its condition as `imm`.
fn compare(number: u32) -> Option<(Op, Inst)> {
    let (family, condition, writes_exec) = match number {
        16..=19 => (number & !1, 0, number & 1 == 1),
        64..=127 => (number & !31, number & 15, number & 16 != 0),
        160..=255 => (number & !23, number & 7, number & 16 != 0),
        _ => return None,
    };
    let op = find(ops::VOPC, family)?;
    let mut inst = Inst::new(op);
    inst.imm = condition as i32;
    inst.flag = writes_exec;
    Some((op, inst))
}

fn vopc(mut inst: Inst, reader: &mut Reader<'_>, [word, _]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    inst.src[0] = reader.src(bits(word, 0, 9))?;
    inst.src[1] = Src::vgpr(bits(word, 9, 8));
    Ok(inst)
}

/// VOP3A and VOP3B, and the other vector encodings in this form.
fn vop3(words: &[u32], arch: Arch) -> Result<Inst, &'static str> {
    use Op::*;
    let [word, second] = *words.first_chunk().ok_or("ends within it")?;
    let number = bits(word, 16, 10);
    let mut inst = match number {
        0..=255 => compare(number).map(|(_, inst)| inst),
        256..=319 => find(ops::VOP2, number - 256).map(Inst::new),
        320..=447 => find(ops::VOP1, number - 320).map(Inst::new),
        _ => find(ops::VOP3, number).map(Inst::new),
    }
    .ok_or("unknown opcode")?;
    let op = inst.op.ok_or("unknown opcode")?;
    check_arch(op, arch)?;
    let mut reader = Reader { words, literal: false, own: 2 };
    for (index, src) in inst.src.iter_mut().enumerate() {
        let code = bits(second, 9 * index as u32, 9);
        *src = reader.src(code)?;
    }
    if reader.literal {
        return Err("a literal");
    }
    inst.words = 2;
    inst.neg = bits(second, 29, 3) as u8;
    inst.omod = bits(second, 27, 2) as u8;
    inst.clamp = bits(word, 15, 1) == 1;
    let destination = bits(word, 0, 8);
    let two_results = matches!(
        op,
        V_ADD_CO_U32
            | V_SUB_CO_U32
            | V_SUBREV_CO_U32
            | V_ADDC_CO_U32
            | V_SUBB_CO_U32
            | V_SUBBREV_CO_U32
            | V_DIV_SCALE_F32
            | V_DIV_SCALE_F64
            | V_MAD_U64_U32
            | V_MAD_I64_I32
    );
    if two_results {
        inst.sdst = bits(word, 8, 7) as u8;
    } else {
        inst.abs = bits(word, 8, 3) as u8;
        inst.sel = bits(word, 11, 4) as u8;
        if inst.sel != 0 {
            return Err("op_sel");
        }
    }
    match number {
        0..=255 => inst.sdst = destination as u8,
        320..=447 => vop1_destination(&mut inst, destination),
        _ if op == V_READLANE_B32 => inst.dst = destination as u16,
        _ => inst.dst = VGPR + destination as u16,
    }
    Ok(inst)
}

fn vop3p(
    mut inst: Inst,
    reader: &mut Reader<'_>,
    [word, second]: [u32; 2],
    _: Arch,
) -> Result<Inst, &'static str> {
    let sources = match inst.op {
        Some(Op::V_PK_FMA_F32) => 3,
        Some(Op::V_ACCVGPR_READ_B32 | Op::V_ACCVGPR_WRITE_B32) => 1,
        _ => 2,
    };
    for index in 0..sources {
        inst.src[index] = reader.src(bits(second, 9 * index as u32, 9))?;
    }
    if reader.literal {
        return Err("a literal");
    }
    inst.dst = VGPR + bits(word, 0, 8) as u16;
    match inst.op {
        Some(Op::V_ACCVGPR_READ_B32) => inst.src[0].code += AGPR - VGPR,
        Some(Op::V_ACCVGPR_WRITE_B32) => inst.dst += AGPR - VGPR,
        _ => {
            inst.neg_hi = bits(word, 8, 3) as u8;
            inst.sel = bits(word, 11, 3) as u8;
            inst.sel_hi = (bits(second, 27, 2) | (bits(word, 14, 1) << 2)) as u8;
            inst.neg = bits(second, 29, 3) as u8;
            inst.clamp = bits(word, 15, 1) == 1;
        }
    }
    Ok(inst)
}

fn ds(mut inst: Inst, _: &mut Reader<'_>, [word, second]: [u32; 2], _: Arch) -> Result<Inst, &'static str> {
    if bits(word, 16, 1) == 1 {
        return Err("GDS");
    }
    let acc = if bits(word, 25, 1) == 1 { AGPR - VGPR } else { 0 };
    inst.imm = bits(word, 0, 16) as i32;
    inst.src[0] = Src::vgpr(bits(second, 0, 8));
    inst.src[1] = Src::vgpr(bits(second, 8, 8));
    inst.src[2] = Src::vgpr(bits(second, 16, 8));
    inst.src[1].code += acc;
    inst.src[2].code += acc;
    inst.dst = VGPR + bits(second, 24, 8) as u16 + acc;
    Ok(inst)
}

fn flat(
    mut inst: Inst,
    _: &mut Reader<'_>,
    [word, second]: [u32; 2],
    arch: Arch,
) -> Result<Inst, &'static str> {
    let acc = if bits(second, 23, 1) == 1 { AGPR - VGPR } else { 0 };
    inst.segment = match bits(word, 14, 2) {
        0 => Segment::Flat,
        1 => Segment::Scratch,
        2 => Segment::Global,
        _ => return Err("a segment that is reserved"),
    };
    let sve = bits(word, 13, 1) == 1;
    if sve && !(arch == Arch::Gfx942 && inst.segment == Segment::Scratch) {
        return Err("LDS");
    }
    inst.imm = match inst.segment {
        Segment::Flat => bits(word, 0, 12) as i32,
        _ => signed(bits(word, 0, 13), 13),
    };
    inst.flag = bits(word, 16, 1) == 1;
    let saddr = bits(second, 16, 7);
    inst.src[0] = Src::vgpr(bits(second, 0, 8));
    inst.src[1] = Src::vgpr(bits(second, 8, 8));
    inst.src[1].code += acc;
    inst.src[2] = Src::sgpr(if inst.segment == Segment::Flat { 0x7f } else { saddr });
    inst.offen = match arch {
        Arch::Gfx942 => sve,
        Arch::Gfx90a => saddr == 0x7f,
    };
    inst.dst = VGPR + bits(second, 24, 8) as u16 + acc;
    Ok(inst)
}

fn mubuf(
    mut inst: Inst,
    reader: &mut Reader<'_>,
    [word, second]: [u32; 2],
    _: Arch,
) -> Result<Inst, &'static str> {
    let acc = if bits(second, 23, 1) == 1 { AGPR - VGPR } else { 0 };
    if bits(word, 13, 1) == 1 || bits(word, 16, 1) == 1 {
        return Err("IDXEN or LDS");
    }
    inst.segment = Segment::Buffer;
    inst.imm = bits(word, 0, 12) as i32;
    inst.offen = bits(word, 12, 1) == 1;
    inst.src[0] = Src::vgpr(bits(second, 0, 8));
    inst.dst = VGPR + bits(second, 8, 8) as u16 + acc;
    inst.src[1] = Src { code: inst.dst, value: 0 };
    inst.src[2] = reader.src(bits(second, 24, 8))?;
    inst.sdst = (bits(second, 16, 5) * 4) as u8;
    Ok(inst)
}
