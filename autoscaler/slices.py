"""What a TPU host brings to Ray beside its chips: the name of its slice, its number in it, pod type and topology. Pure.

On a TPU machine Ray reads these four by itself and makes labels and resources of them
(ray/_private/accelerators/tpu.py); `ray.util.tpu.slice_placement_group` and JaxTrainer ask for exactly those. The
packing, the fakes and the local cloud take them from here, so that what is planned for is what will be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.model import Labels, Offer, Resources

LABEL_TPU_SLICE = "ray.io/tpu-slice-name"
LABEL_TPU_WORKER = "ray.io/tpu-worker-id"
LABEL_TPU_TOPOLOGY = "ray.io/tpu-topology"
LABEL_TPU_POD = "ray.io/tpu-pod-type"

_ONE_CORE_PER_CHIP = ("v5litepod", "v6e")  # pod types count cores: of all others, a chip has two
_FLAT = ("v2", "v3", "v5litepod", "v6e")  # chips are wired in two dimensions; in the others, in three


@dataclass(frozen=True, slots=True)
class TpuHost:
    """One host of a slice, or of a TPU machine that is a slice of its own. A slice is named by its launch id."""

    pod_type: str  # "v4-16"
    topology: str  # "2x2x2"; empty: not known
    number: int
    slice_name: str = ""  # empty: not asked for yet

    @property
    def labels(self) -> Labels:
        found = {
            LABEL_TPU_SLICE: self.slice_name,
            LABEL_TPU_WORKER: str(self.number),
            LABEL_TPU_TOPOLOGY: self.topology,
            LABEL_TPU_POD: self.pod_type,
        }
        return {key: value for key, value in found.items() if value}

    @property
    def resources(self) -> Resources:
        """The first host brings what a slice is reserved by; all of them bring their slice's name."""
        found = {f"TPU-{self.pod_type}-head": 1.0} if self.number == 0 else {}
        return {**found, self.slice_name: 1.0} if self.slice_name else found

    @property
    def env(self) -> dict[str, str]:
        """Where Ray looks for the four: the environment, as on GKE. What is there is not asked of the machine."""
        found = {
            "TPU_NAME": self.slice_name,
            "TPU_WORKER_ID": str(self.number),
            "TPU_TOPOLOGY": self.topology,
            "TPU_ACCELERATOR_TYPE": self.pod_type,
        }
        return {key: value for key, value in found.items() if value}


def is_tpu(offer: Offer) -> bool:
    return offer.accelerator.startswith("TPU-")


def tpu_hosts(offer: Offer, slice_name: str = "") -> tuple[TpuHost, ...]:
    """Each host of an offer of TPUs; none for any other."""
    if not is_tpu(offer):
        return ()
    generation, chips = offer.accelerator.removeprefix("TPU-").lower(), int(offer.accelerator_count * offer.hosts)
    pod_type = f"{generation}-{chips * (1 if generation in _ONE_CORE_PER_CHIP else 2)}"
    topology = _topology(chips, 2 if generation in _FLAT else 3)
    return tuple(TpuHost(pod_type, topology, number, slice_name) for number in range(offer.hosts))


def _topology(chips: int, dimensions: int) -> str:
    """The shape that a pod type has unless another is asked for: sides as even as powers of two can be, the longest
    last. One host of three dimensions is the exception: 2x2x1."""
    if chips & (chips - 1) or chips < 1:
        return ""  # sold in several shapes: the machine knows, we do not
    if dimensions == 3 and chips <= 4:
        return "2x2x1" if chips == 4 else ""
    doublings = chips.bit_length() - 1
    return "x".join(str(2 ** ((doublings + side) // dimensions)) for side in range(dimensions))
