//! `tok/s = bandwidth / bytes per token`, per link, the slowest link deciding.

use serde::Serialize;

use super::{Outcome, Setup};

/// Where bytes flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    File,
    Memory,
    Vram,
    Pcie,
}

impl Link {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Link::File => "file",
            Link::Memory => "memory",
            Link::Vram => "VRAM",
            Link::Pcie => "PCIe",
        }
    }
}

/// One link.
///
/// Units: bytes, bytes per second, tokens per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LinkRate {
    pub link: Link,
    pub bytes_per_token: f64,
    pub bytes_per_second: f64,
    /// Absent where nothing flows.
    pub tokens_per_second: Option<f64>,
}

/// The links of one outcome.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Law {
    pub links: Vec<LinkRate>,
    /// The slowest; absent where nothing flows at all.
    pub binds: Option<Link>,
    pub tokens_per_second: Option<f64>,
}

/// What the bytes of an outcome allow, if all links work at once and none waits for another.
pub fn law(outcome: &Outcome, setup: &Setup, expert_bytes: u64) -> Law {
    let per_token =
        |experts: u64| experts as f64 * expert_bytes as f64 / outcome.tokens.max(1) as f64;
    let on_cpu = outcome.requested - outcome.vram_hits;
    let d = &setup.devices;
    let flows = [
        (Link::File, per_token(outcome.reads), d.disk_rate),
        (Link::Memory, per_token(on_cpu) + setup.dense_bytes as f64, d.memory_rate),
        (Link::Vram, per_token(outcome.vram_hits), d.vram_rate),
        (Link::Pcie, per_token(outcome.promotions), d.pcie_rate),
    ];
    let links = flows.map(|(link, bytes_per_token, bytes_per_second)| LinkRate {
        link,
        bytes_per_token,
        bytes_per_second,
        tokens_per_second: (bytes_per_token > 0.0).then(|| bytes_per_second / bytes_per_token),
    });
    let slowest = links
        .iter()
        .filter_map(|l| Some((l.link, l.tokens_per_second?)))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    Law {
        links: links.to_vec(),
        binds: slowest.map(|(link, _)| link),
        tokens_per_second: slowest.map(|(_, rate)| rate),
    }
}
