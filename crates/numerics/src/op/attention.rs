//! Causal attention of a chunk over everything before and in it.
//!
//! Per query head, over the positions j up to its own: `t_j = S_f32(q*k_j) * scale`,
//! `e_j = exp32(t_j - max t)`, `Z = S_f32(e_j)`, `a_j = store(e_j/Z)`, `o = S_bf16(a_j*v_j)`.

use half::bf16;

use crate::cpu::{Cpu, attention as kernel};
use crate::{NonFinite, SimdLevel};

/// Rows of keys and values start at multiples of this many elements, padded with zeros.
const ROW_ALIGN: usize = 32;

/// The keys and values of one layer.
///
/// One run of rows per key/value head, so that a head's rows are neighbours.
#[derive(Clone, Debug)]
pub struct KeyValues {
    head_dim: usize,
    stride: usize,
    positions: usize,
    heads: Vec<Head>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) keys: Vec<bf16>,
    pub(crate) values: Vec<bf16>,
    /// Per position an upper bound of |k| (Euclid) and of max |v|.
    pub(crate) key_norms: Vec<f32>,
    pub(crate) value_peaks: Vec<f32>,
    /// Per position the grid of its key.
    pub(crate) key_grids: Vec<i32>,
}

impl KeyValues {
    /// No positions yet.
    pub fn new(heads: usize, head_dim: usize) -> KeyValues {
        let stride = head_dim.next_multiple_of(ROW_ALIGN);
        KeyValues { head_dim, stride, positions: 0, heads: vec![Head::default(); heads] }
    }

    /// Appends tokens.
    ///
    /// Shapes: `k` and `v` are `[tokens, heads, head_dim]`.
    pub fn append(&mut self, k: &[bf16], v: &[bf16]) {
        let width = self.heads.len() * self.head_dim;
        assert!(k.len() == v.len() && k.len().is_multiple_of(width), "rows of {width}");
        for (k, v) in k.chunks(width).zip(v.chunks(width)) {
            let rows = k.chunks(self.head_dim).zip(v.chunks(self.head_dim));
            for (head, (k, v)) in self.heads.iter_mut().zip(rows) {
                head.append(k, v, self.stride);
            }
            self.positions += 1;
        }
    }

    /// Tokens seen.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// All keys and all values, `[positions, heads, head_dim]` each, as `append` takes them.
    pub fn export(&self) -> (Vec<bf16>, Vec<bf16>) {
        let gather = |rows: fn(&Head) -> &[bf16]| {
            let mut out = Vec::with_capacity(self.positions * self.heads.len() * self.head_dim);
            for p in 0..self.positions {
                for head in &self.heads {
                    out.extend_from_slice(&rows(head)[p * self.stride..][..self.head_dim]);
                }
            }
            out
        };
        (gather(|h| &h.keys), gather(|h| &h.values))
    }

    pub(crate) fn head(&self, g: usize) -> &Head {
        &self.heads[g]
    }

    /// Heads of keys and values.
    pub fn head_count(&self) -> usize {
        self.heads.len()
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }
}

impl Head {
    fn append(&mut self, k: &[bf16], v: &[bf16], stride: usize) {
        let wide = |v: &bf16| f64::from(crate::round::widen(*v));
        let square: f64 = k.iter().map(|v| wide(v) * wide(v)).sum();
        self.key_norms.push((square.sqrt() * 1.000_001) as f32);
        self.key_grids.push(crate::exact::grid(k));
        self.value_peaks.push(v.iter().fold(0.0, |m, v| wide(v).abs().max(m)) as f32);
        for (rows, new) in [(&mut self.keys, k), (&mut self.values, v)] {
            let end = rows.len() + stride;
            rows.extend_from_slice(new);
            rows.resize(end, bf16::ZERO);
        }
    }
}

/// Attends for the last `tokens` positions of `cache`.
///
/// Shapes: `q` and `out` are `[tokens, query_heads, head_dim]`; query head h reads key/value
/// head `h / (query_heads / kv_heads)`. `cache` already holds the chunk's own keys and values.
///
/// # Errors
/// A sum that is not finite; `row` is the query head.
///
/// Source: Vaswani et al. 2017, equation 1.
pub fn attention(
    cpu: &Cpu,
    cache: &KeyValues,
    query_heads: usize,
    scale: f32,
    q: &[bf16],
    out: &mut [bf16],
) -> Result<(), NonFinite> {
    let width = query_heads * cache.head_dim;
    assert!(q.len() == out.len() && q.len().is_multiple_of(width), "rows of {width}");
    assert!(query_heads.is_multiple_of(cache.heads.len()), "query heads per key/value head");
    assert!(q.len() / width <= cache.positions, "the cache holds the chunk");
    kernel::run(cpu, cache, query_heads, scale, q, out)
}

/// `softmax` as attention uses it: `store(exp32(t_j - max)/Z)` in place, as f32.
pub(crate) fn soften(level: SimdLevel, t: &mut [f32]) -> Option<()> {
    let most = t.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    t.iter_mut().for_each(|v| *v -= most);
    crate::elementary::exp32_slice(level, t);
    let z = super::dot::sum(level, t)?;
    t.iter_mut().for_each(|v| *v = crate::round::widen(crate::round::store(*v / z)));
    Some(())
}
