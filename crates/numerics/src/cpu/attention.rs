//! Attention: scores and outputs as f64 sums with bounds; a task is one token and one kv head.

use half::bf16;

use super::linear::{wide_dot, wide_roundings};
use super::{Cpu, SimdLevel, for_level};
use crate::NonFinite;
use crate::bound::{decide_bf16, decide_f32, wide_bound};
use crate::cpu::lanes::{Lanes, wide_operand};
use crate::exact::{Unrounded, grid, is_exact_in_f64};
use crate::op::attention::{Head, KeyValues, soften};
use crate::round::widen;

/// Query heads that share the widening of a key row.
const TOGETHER: usize = 4;

/// One token's query heads of one key/value head.
struct Task<'a> {
    level: SimdLevel,
    cache: &'a KeyValues,
    head: &'a Head,
    scale: f32,
    /// Positions that this token sees.
    seen: usize,
    token: usize,
    first_head: usize,
    /// `[query heads of the group, head_dim]`.
    q: &'a [bf16],
    out: &'a mut [bf16],
    done: Result<(), NonFinite>,
}

pub(crate) fn run(
    cpu: &Cpu,
    cache: &KeyValues,
    query_heads: usize,
    scale: f32,
    q: &[bf16],
    out: &mut [bf16],
) -> Result<(), NonFinite> {
    let group = query_heads / cache.head_count() * cache.head_dim();
    let width = query_heads * cache.head_dim();
    let before = cache.positions() - q.len() / width;
    let mut tasks: Vec<Task<'_>> = (q.chunks(group).zip(out.chunks_mut(group)))
        .enumerate()
        .map(|(i, (q, out))| {
            let (token, g) = (i / cache.head_count(), i % cache.head_count());
            Task {
                level: cpu.level(),
                cache,
                head: cache.head(g),
                scale,
                seen: before + token + 1,
                token,
                first_head: g * (query_heads / cache.head_count()),
                q,
                out,
                done: Ok(()),
            }
        })
        .collect();
    let work = |task: &mut Task<'_>| {
        task.done = for_level!(task.level, heads(task: &mut Task<'_>) -> Result<(), NonFinite>);
    };
    if q.len() * cache.positions() < 1 << 14 {
        tasks.iter_mut().for_each(work);
    } else {
        cpu.each_mut(&mut tasks, work);
    }
    tasks.into_iter().try_for_each(|t| t.done)
}

#[inline(always)]
fn heads<L: Lanes>(task: &mut Task<'_>) -> Result<(), NonFinite> {
    let dim = task.cache.head_dim();
    let count = task.q.len() / dim;
    let mut first = 0;
    while first < count {
        let together = (count - first).min(TOGETHER);
        let mut weights = vec![0.0f32; together * task.seen];
        scores::<L>(task, first, together, &mut weights)?;
        for (i, t) in weights.chunks_mut(task.seen).enumerate() {
            let failed = NonFinite { row: task.first_head + first + i, token: task.token };
            soften(task.level, t).ok_or(failed)?;
        }
        let mut h = 0;
        while h < together {
            let pair = &weights[h * task.seen..];
            if together - h >= 2 {
                outputs::<L, 2>(task, first + h, &pair[..2 * task.seen])?;
                h += 2;
            } else {
                outputs::<L, 1>(task, first + h, &pair[..task.seen])?;
                h += 1;
            }
        }
        first += together;
    }
    Ok(())
}

/// `t_j = S_f32(q*k_j) * scale` for up to `TOGETHER` heads, `[heads, seen]`.
#[inline(always)]
fn scores<L: Lanes>(
    task: &Task<'_>,
    first: usize,
    count: usize,
    t: &mut [f32],
) -> Result<(), NonFinite> {
    let (dim, stride) = (task.cache.head_dim(), task.cache.stride());
    let queries: [Query; TOGETHER] = std::array::from_fn(|i| {
        let head = first + i.min(count - 1);
        Query::new::<L>(&task.q[head * dim..][..dim], stride)
    });
    let operands: [&[f64]; TOGETHER] = std::array::from_fn(|i| &queries[i].wide[..]);
    for j in 0..task.seen {
        let key = &task.head.keys[j * stride..][..stride];
        let sums = match count {
            1 => {
                let [y] = wide_dot::<L, 1>(key, [operands[0]]);
                [y, 0.0, 0.0, 0.0]
            }
            _ => wide_dot::<L, TOGETHER>(key, operands),
        };
        let norm = f64::from(task.head.key_norms[j]);
        for i in 0..count {
            let absolute = queries[i].norm * norm;
            let decided = if is_exact_in_f64(queries[i].grid + task.head.key_grids[j], absolute) {
                Some(sums[i] as f32).filter(|v| v.is_finite())
            } else {
                decide_f32(sums[i], wide_bound(wide_roundings::<L>(stride), absolute))
            };
            let decided = decided.or_else(|| {
                let q = task.q[(first + i) * dim..][..dim].iter().map(|v| widen(*v));
                Unrounded::products(q.zip(key.iter().map(|v| widen(*v)))).to_f32()
            });
            let failed = NonFinite { row: task.first_head + first + i, token: task.token };
            t[i * task.seen + j] = decided.ok_or(failed)? * task.scale;
        }
    }
    Ok(())
}

/// A query in quarters, with its Euclidean length from above and its grid.
struct Query {
    wide: Vec<f64>,
    norm: f64,
    grid: i32,
}

impl Query {
    #[inline(always)]
    fn new<L: Lanes>(q: &[bf16], stride: usize) -> Query {
        let mut wide = vec![0.0; stride];
        let mut square = 0.0f64;
        for (i, v) in q.iter().enumerate() {
            let (block, inside) = (i / L::BLOCK, i % L::BLOCK);
            let quarter = inside % 4 * (L::WIDTH / 2) + inside / 4;
            wide[block * L::BLOCK + quarter] = wide_operand(widen(*v));
            square += f64::from(widen(*v)) * f64::from(widen(*v));
        }
        Query { wide, norm: square.sqrt() * 1.000_001, grid: grid(q) }
    }
}

/// `o = S_bf16(a_j*v_j)` for `C` heads; `a` is `[C, seen]`.
#[inline(always)]
fn outputs<L: Lanes, const C: usize>(
    task: &mut Task<'_>,
    first: usize,
    a: &[f32],
) -> Result<(), NonFinite> {
    let (dim, stride, seen) = (task.cache.head_dim(), task.cache.stride(), task.seen);
    let wide: Vec<f64> = a.iter().map(|v| wide_operand(*v)).collect();
    let peaks = &task.head.value_peaks;
    let absolute: [f64; C] = std::array::from_fn(|c| {
        let a = &a[c * seen..][..seen];
        a.iter().zip(peaks).map(|(a, v)| f64::from(*a) * f64::from(*v)).sum()
    });
    for start in (0..dim).step_by(L::BLOCK) {
        let sums = columns::<L, C>(&task.head.values, stride, start, &wide, seen);
        for c in 0..C {
            let bound = wide_bound(seen, absolute[c]);
            for i in 0..L::BLOCK.min(dim - start) {
                let y = sums[c][i % 4 * (L::WIDTH / 2) + i / 4];
                let decided = decide_bf16(y, bound).or_else(|| {
                    let values = task.head.values[start + i..].iter().step_by(stride);
                    let a = a[c * seen..][..seen].iter().copied();
                    Unrounded::products(a.zip(values.map(|v| widen(*v)))).to_bf16()
                });
                let failed = NonFinite { row: task.first_head + first + c, token: task.token };
                task.out[(first + c) * dim + start + i] = decided.ok_or(failed)?;
            }
        }
    }
    Ok(())
}

/// f64 sums of one block of channels over all positions, `C` heads, in quarters.
#[inline(always)]
fn columns<L: Lanes, const C: usize>(
    values: &[bf16],
    stride: usize,
    start: usize,
    a: &[f64],
    seen: usize,
) -> [[f64; 64]; C] {
    let mut sums = [[L::zero64(); 4]; C];
    assert!(start + L::BLOCK <= stride && seen * stride <= values.len());
    for j in 0..seen {
        // SAFETY: the block lies inside row j of the values (asserted above).
        let p = unsafe { L::packed(values.as_ptr().add(j * stride + start)) };
        let quarters = L::quarters(p);
        for c in 0..C {
            let weight = L::splat64(a[c * seen + j]);
            for (sum, quarter) in sums[c].iter_mut().zip(quarters) {
                *sum = L::fma64(quarter, weight, *sum);
            }
        }
    }
    let mut out = [[0.0; 64]; C];
    for c in 0..C {
        for (q, sum) in sums[c].iter().enumerate() {
            // SAFETY: four half-width vectors fit 64 values.
            unsafe { L::store64(out[c].as_mut_ptr().add(q * L::WIDTH / 2), *sum) };
        }
    }
    out
}
