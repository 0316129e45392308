//! What a code object says of itself: the processor that it is for, and its kernels.
//!
//! The host hands over an address and no length, so everything is read at offsets that the ELF header gives.

use std::collections::BTreeMap;

/// The processor's number in the flags of a code object: `EF_AMDGPU_MACH`.
const MACH: u32 = 0xff;
/// gfx1151's there.
const GFX1151: u32 = 0x4a;
/// The machine number of AMD GPUs.
const AMDGPU: u16 = 224;

/// What a kernel asks for at a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Bytes of its arguments, those that the runtime adds included.
    pub(crate) arguments: usize,
    /// Bytes of shared memory that it declares.
    pub(crate) shared: u32,
}

/// Reads little-endian numbers of an image by offset.
pub(crate) trait Bytes {
    /// `count` bytes from `offset` on.
    fn bytes(&self, offset: usize, count: usize) -> Vec<u8>;

    fn u16(&self, offset: usize) -> u16 {
        self.bytes(offset, 2).try_into().map_or(0, u16::from_le_bytes)
    }
    fn u32(&self, offset: usize) -> u32 {
        self.bytes(offset, 4).try_into().map_or(0, u32::from_le_bytes)
    }
    fn u64(&self, offset: usize) -> usize {
        self.bytes(offset, 8).try_into().map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
    }
    fn text(&self, offset: usize) -> String {
        // No name is longer.
        let text = (offset..offset + 256).map(|at| self.bytes(at, 1)[0]);
        let text = text.take_while(|&byte| byte != 0).collect();
        String::from_utf8(text).unwrap_or_default()
    }
}

/// The kernels of a code object for gfx1151, by name; else why it is none.
pub(crate) fn kernels(image: &impl Bytes) -> Result<BTreeMap<String, Needs>, String> {
    if image.bytes(0, 4) != b"\x7fELF" {
        return Err("the image is no ELF file".into());
    }
    if image.u16(18) != AMDGPU || image.u32(48) & MACH != GFX1151 {
        let (machine, flags) = (image.u16(18), image.u32(48));
        return Err(format!("the image is not for gfx1151: machine {machine}, flags {flags:#x}"));
    }
    let (sections, size, count) = (image.u64(40), image.u16(58) as usize, image.u16(60) as usize);
    let section = |index: usize| sections + index * size;
    let mut found = BTreeMap::new();
    // The dynamic symbols, 11, with the strings that their section names.
    let Some(symbols) = (0..count).map(section).find(|&at| image.u32(at + 4) == 11) else {
        return Err("the image has no dynamic symbols".into());
    };
    let strings = image.u64(section(image.u32(symbols + 40) as usize) + 24);
    for symbol in (0..image.u64(symbols + 32) / 24).map(|index| image.u64(symbols + 24) + 24 * index) {
        let name = image.text(strings + image.u32(symbol) as usize);
        let Some(name) = name.strip_suffix(".kd") else { continue };
        // A kernel's descriptor lies in a section, whose address and offset in the file differ.
        let (address, home) = (image.u64(symbol + 8), section(image.u16(symbol + 6) as usize));
        let descriptor = address - image.u64(home + 16) + image.u64(home + 24);
        let needs = Needs { shared: image.u32(descriptor), arguments: image.u32(descriptor + 8) as usize };
        found.insert(name.to_owned(), needs);
    }
    Ok(found)
}
