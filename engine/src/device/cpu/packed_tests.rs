//! Weights of 16 bits: that they are what they were, on every instruction set, and take no more room.

use half::{bf16, f16};

use super::isa::{Isa, Rows, TILE_ROWS};
use super::multiply::Multiplier;
use super::packed::{Kind, Layout, Matrix, PANEL, Packed};
use super::pool::Pool;
use crate::model::Dtype;

/// Zeros, subnormals, the largest, infinities, and NaNs quiet and signalling.
const SPECIAL: [u16; 15] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x0200, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
    0x7c01, 0xfdab,
];

fn noise(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * 1.37).sin()).collect()
}

/// Halves of every kind of a matrix: ordinary ones; all finite ones in no order; ordinary ones with a special
/// one in every row.
fn halves(outputs: usize, inputs: usize) -> [Vec<u16>; 3] {
    let ordinary: Vec<u16> =
        noise(outputs * inputs).into_iter().map(|value| f16::from_f32(value).to_bits()).collect();
    let any = |at: usize| (at * 40_503 + 77) as u16;
    let finite = (0..ordinary.len()).map(|at| if any(at) & 0x7c00 == 0x7c00 { 1 } else { any(at) });
    let mut special = ordinary.clone();
    for (output, row) in special.chunks_mut(inputs).enumerate() {
        row[output * 7 % inputs] = SPECIAL[output % SPECIAL.len()];
    }
    [ordinary.clone(), finite.collect(), special]
}

/// Of the values, all NaN alike: which of several comes out of a sum, Rust does not say.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

fn products(packed: &Packed, isa: Isa, pool: &Pool, rows: Rows<'_>) -> [Vec<u32>; 3] {
    let multiplier = Multiplier { pool, isa };
    let mut stored = vec![1.0; rows.count * packed.panels() * PANEL];
    multiplier.store(packed, rows, &mut stored);
    let mut added = vec![1.0; stored.len()];
    multiplier.add(packed, rows, &mut added);
    let mut gated = vec![1.0; stored.len() / 2];
    multiplier.gated(packed, rows, &mut gated);
    [bits(&stored), bits(&added), bits(&gated)]
}

#[test]
fn halves_give_the_bits_that_the_same_weights_in_f32_give() {
    let pool = Pool::new(2);
    for (outputs, inputs) in [(1, 1), (15, 2), (45, 37), (33, 64), (70, 131)] {
        let count = 2 * TILE_ROWS + 1;
        let mut x = noise(count * inputs);
        x[inputs] = f32::INFINITY;
        x[2 * inputs] = f32::MIN_POSITIVE / 4.0;
        for halves in halves(outputs, inputs) {
            let stored: Vec<u8> = halves.iter().copied().flat_map(u16::to_le_bytes).collect();
            let values: Vec<f32> = halves.iter().map(|&half| f16::from_bits(half).to_f32()).collect();
            let wide: Vec<u8> = values.iter().copied().flat_map(f32::to_le_bytes).collect();
            let matrix = |dtype, bytes| Matrix { dtype, bytes, outputs, inputs, bias: Some(noise(outputs)) };
            let (half, single) = (matrix(Dtype::F16, &stored), matrix(Dtype::F32, &wide));
            let packed = [
                Packed::stacked(&pool, &[half.clone(), half.clone()]),
                Packed::paired(&pool, half.clone(), half),
            ];
            let expected = [
                Packed::stacked(&pool, &[single.clone(), single.clone()]),
                Packed::paired(&pool, single.clone(), single),
            ];
            for output in 0..outputs {
                let mut row = vec![0.0; inputs];
                packed[0].row(output, &mut row);
                assert_eq!(bits(&row), bits(&values[output * inputs..][..inputs]));
            }
            for (packed, expected) in packed.iter().zip(&expected) {
                for isa in Isa::all() {
                    for count in 1..=count {
                        let rows = Rows { values: &x, stride: inputs, count };
                        let [got, want] = [packed, expected].map(|packed| products(packed, isa, &pool, rows));
                        assert!(got == want, "{isa:?}, {outputs} outputs, {inputs} inputs, {count} rows");
                    }
                }
            }
        }
    }
}

#[test]
fn every_half_is_multiplied_as_what_it_is() {
    let pool = Pool::new(2);
    // First as the even input beside a zero, then as the odd one.
    let (even, odd) = (|half| [half, 0], |half| [0, half]);
    let pairs = (0..=u16::MAX).map(even).chain((0..=u16::MAX).map(odd));
    let stored: Vec<u8> = pairs.flatten().flat_map(u16::to_le_bytes).collect();
    let matrix = Matrix { dtype: Dtype::F16, bytes: &stored, outputs: 1 << 17, inputs: 2, bias: None };
    let packed = Packed::stacked(&pool, &[matrix]);
    // Minus zero and the sum's own zero are zero.
    let expected: Vec<f32> = (0..=u16::MAX).map(|half| f16::from_bits(half).to_f32() + 0.0).collect();
    for isa in Isa::all() {
        let mut out = vec![0.0; 1 << 17];
        let rows = Rows { values: &[1.0, 1.0], stride: 2, count: 1 };
        Multiplier { pool: &pool, isa }.store(&packed, rows, &mut out);
        for out in out.chunks(1 << 16) {
            let wrong =
                bits(out).into_iter().zip(bits(&expected)).position(|(got, expected)| got != expected);
            assert_eq!(wrong, None, "{isa:?}");
        }
    }
}

#[test]
fn weights_of_16_bits_take_no_more_room_than_in_the_file_unless_a_panel_has_two_types() {
    let (pool, inputs) = (Pool::new(1), 6);
    let bytes = [bf16::ONE.to_le_bytes(), f16::ONE.to_le_bytes()];
    let bytes = bytes.map(|value| value.repeat(48 * inputs));
    let matrix = |dtype, bytes| Matrix { dtype, bytes, outputs: 48, inputs, bias: None };
    let parts = [matrix(Dtype::Bf16, &bytes[0]), matrix(Dtype::F16, &bytes[1])];
    let packed = Packed::stacked(&pool, &parts);
    let panels = (0..packed.panels()).map(|panel| packed.panel(panel));
    let panels: Vec<_> = panels.map(|(layout, lines)| (layout, size_of_val(lines))).collect();
    let stored = Dtype::F16.bytes(PANEL * inputs);
    let plain = |kind, size| (Layout::Plain(kind), size);
    assert_eq!(panels, [plain(Kind::Bf16, stored), plain(Kind::F32, 2 * stored), plain(Kind::F16, stored)]);
    let mut row = vec![0.0; inputs];
    for output in 0..96 {
        packed.row(output, &mut row);
        assert_eq!(bits(&row), bits(&vec![1.0; inputs]), "output {output}");
    }
}
