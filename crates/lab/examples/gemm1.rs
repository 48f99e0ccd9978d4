use numerics::op::linear::*; use numerics::*; 
fn cpu_s() -> f64 { let s = std::fs::read_to_string("/proc/self/stat").unwrap(); let v: Vec<&str> = s.rsplit(')').next().unwrap().split_whitespace().collect(); v[11].parse::<f64>().unwrap()/100.0 }
fn main() {
    let cpu = Cpu::new(SimdLevel::detect(), 1).unwrap();
    let t0 = cpu_s(); let p = probe::fma_peak(&cpu); let _ = p; let w = 20_000_000.0*12.0*2.0*8.0/ (cpu_s()-t0) / 1e9; println!("peak {w:.1} (cpu)");
    let a: Vec<usize> = std::env::args().skip(1).map(|s| s.parse().unwrap()).collect(); for k in [a[0]] { for tokens in a[1..].iter().copied() {
        let rows = (16 << 20) / k / 4 * 4; let w = lab::kernels::weights(rows * k, &cpu); let x = lab::kernels::weights(tokens * k, &cpu);
        let mut out = vec![bf16::ZERO; tokens * rows];
        let input = Prepared::new(&cpu, x, k);
        let reps = (60_000_000_000usize / (rows * k * tokens)).max(1).min(600);
        let t = cpu_s();
        for _ in 0..reps { linear(&cpu, &mut [Job { weights: Matrix::new(rows, k, Elements::Bf16(&w)), input: &input, tokens: None, output: Output::Bf16(&mut out) }]).unwrap(); }
        let s = cpu_s() - t;
        println!("k {k} tokens {tokens}: {:.1} GFLOP/s {:.1} GB/s", 2.0 * (rows * k * tokens * reps) as f64 / s / 1e9, 2.0 * (rows * k * reps) as f64 / s / 1e9);
    } }
}
