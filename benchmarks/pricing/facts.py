"""Facts about instance types that the CSV lists do not have: what GCP's machines carry, TPU hosts, network speeds.

Network is the nominal one of a host, all cards together. Network and card memory were written down without a check
against the clouds' pages: look them up before you rely on them.
"""

from __future__ import annotations

# CPU machines that are kept: heads and data loading. All accelerator types are.
PLAIN = {
    "aws": (
        *(f"m7i.{size}" for size in ("large", "xlarge", "2xlarge", "4xlarge")),
        *(f"c7i.{size}" for size in ("xlarge", "2xlarge", "4xlarge")),
        "r7i.2xlarge",
    ),
    "gcp": (*(f"e2-standard-{n}" for n in (2, 4, 8, 16)), *(f"n2-standard-{n}" for n in (4, 8, 16))),
    "azure": ("Standard_D2s_v5", "Standard_D4s_v5", "Standard_D8s_v5", "Standard_D16s_v5"),
}
# Our names where a list has another, and those that are left out: no GPU for Ray (Neuron, FPGA, Qualcomm), arm64 hosts,
# or cards that no current PyTorch runs on.
RENAMED = {"RTX PRO Server 6000": "RTX-PRO-6000", "RTXPRO6000": "RTX-PRO-6000", "RTX PRO 4500": "RTX-PRO-4500"}
LEFT_OUT = ("Inferentia", "Trainium", "Virtex", "Qualcomm", "Gaudi", "Radeon", "T4g", "K80", "M60")
# A list says 12: the machine has 8.
CORRECTED_COUNTS = {"Standard_ND96isr_H100_v5": 8.0}

# GCP: machine -> (accelerator as the list prices it, as we call it, count). Cards are attached to n1 machines.
GCP_MACHINES = {
    **{f"a2-highgpu-{n}g": ("A100", "A100", n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("A100", "A100", 16),
    **{f"a2-ultragpu-{n}g": ("A100-80GB", "A100-80GB", n) for n in (1, 2, 4, 8)},
    **{f"a3-highgpu-{n}g": ("H100", "H100", n) for n in (1, 2, 4, 8)},
    "a3-megagpu-8g": ("H100-MEGA", "H100", 8),
    "a3-ultragpu-8g": ("H200", "H200", 8),
    "a4-highgpu-8g": ("B200", "B200", 8),
    **{f"g2-standard-{cpus}": ("L4", "L4", n) for cpus, n in ((4, 1), (8, 1), (12, 1), (16, 1), (32, 1))},
    **{f"g2-standard-{cpus}": ("L4", "L4", n) for cpus, n in ((24, 2), (48, 4), (96, 8))},
    **{f"g4-standard-{48 * n}": ("RTXPRO6000", "RTX-PRO-6000", n) for n in (1, 2, 4, 8)},
}
GCP_CARDS = {
    "T4": (("n1-standard-4", 1), ("n1-standard-8", 1), ("n1-standard-16", 2), ("n1-standard-32", 4)),
    "P4": (("n1-standard-8", 1), ("n1-standard-16", 2), ("n1-standard-32", 4)),
    "P100": (("n1-standard-8", 1), ("n1-standard-16", 2), ("n1-standard-32", 4)),
    "V100": (("n1-standard-8", 1), ("n1-standard-16", 2), ("n1-standard-32", 4), ("n1-standard-64", 8)),
}
# TPU generation: (cores a chip, as its names count them; vCPUs and memory GiB of a host by its chips; memory of a chip)
TPUS = {
    "v2": (2, {4: (96, 334)}, 16),
    "v3": (2, {4: (96, 334)}, 32),
    "v4": (2, {4: (240, 407)}, 32),
    "v5p": (2, {4: (208, 448)}, 95),
    "v5litepod": (1, {1: (24, 48), 4: (112, 192), 8: (224, 384)}, 16),
    "v6e": (1, {1: (44, 176), 4: (180, 720), 8: (180, 1440)}, 32),
}
MAX_TPU_HOSTS = 64

ACCELERATOR_GIB = {
    "A10": 24,
    "A10G": 24,
    "A100": 40,
    "A100-80GB": 80,
    "B200": 180,
    "B300": 269,
    "H100": 80,
    "H200": 141,
    "L4": 24,
    "L40S": 48,
    "P100": 16,
    "P4": 8,
    "RTX-PRO-4500": 32,
    "RTX-PRO-6000": 96,
    "T4": 16,
    "V100": 16,
    "V100-32GB": 32,
}

_SIZES = ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")
NETWORK_GBPS: dict[str, float] = {
    **{f"g4dn.{size}": n for size, n in zip(_SIZES[:6], (25, 25, 25, 50, 50, 50), strict=True)},
    "g4dn.metal": 100,
    **{f"g5.{size}": n for size, n in zip(_SIZES, (10, 10, 25, 25, 40, 25, 50, 100), strict=True)},
    **{f"g6.{size}": n for size, n in zip(_SIZES, (10, 10, 25, 25, 40, 25, 50, 100), strict=True)},
    **{f"g6e.{size}": n for size, n in zip(_SIZES, (20, 20, 20, 25, 100, 35, 200, 400), strict=True)},
    "gr6.4xlarge": 25,
    "gr6.8xlarge": 25,
    "p3dn.24xlarge": 100,
    "p4d.24xlarge": 400,
    "p4de.24xlarge": 400,
    "p5.4xlarge": 100,
    "p5.48xlarge": 3200,
    "p5e.48xlarge": 3200,
    "p5en.48xlarge": 3200,
    "p6-b200.48xlarge": 3200,
    "p6-b300.48xlarge": 6400,
    **{f"a2-{kind}gpu-{n}g": g for kind in ("high", "ultra") for n, g in ((1, 24), (2, 50), (4, 50), (8, 100))},
    "a2-megagpu-16g": 100,
    "a3-highgpu-1g": 25,
    "a3-highgpu-2g": 50,
    "a3-highgpu-4g": 100,
    "a3-highgpu-8g": 1000,
    "a3-megagpu-8g": 1800,
    "a3-ultragpu-8g": 3600,
    "a4-highgpu-8g": 3600,
    **{f"g2-standard-{cpus}": n for cpus, n in ((4, 10), (8, 16), (12, 16), (16, 32), (24, 32), (32, 32), (48, 50))},
    "g2-standard-96": 100,
    "g4-standard-48": 50,
    "g4-standard-96": 100,
    "g4-standard-192": 200,
    "g4-standard-384": 400,
    "Standard_ND40rs_v2": 100,
    "Standard_ND96asr_v4": 1600,
    "Standard_ND96amsr_A100_v4": 1600,
    "Standard_ND96isr_H100_v5": 3200,
    "Standard_NC24ads_A100_v4": 20,
    "Standard_NC48ads_A100_v4": 40,
    "Standard_NC96ads_A100_v4": 80,
    "Standard_NC40ads_H100_v5": 40,
    "Standard_NC80adis_H100_v5": 80,
    "Standard_NC4as_T4_v3": 8,
    "Standard_NC8as_T4_v3": 8,
    "Standard_NC16as_T4_v3": 8,
    "Standard_NC64as_T4_v3": 32,
}
