import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.device.visible import DeviceIdentity, select_visible
from kareus.errors import DeviceError

GPUS = tuple(
    DeviceIdentity(index=i, uuid=f"GPU-{i}abc{i}def-0000", name="NVIDIA A100-SXM4-40GB")
    for i in range(4)
)
MIXED = (*GPUS[:2], DeviceIdentity(index=2, uuid="GPU-2", name="NVIDIA A40"))


def indices(text: str | None, devices=GPUS, order: str | None = None) -> list[int]:
    return [device.index for device in select_visible(text, devices, order=order)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("1", [1]),
        ("0,1,", [0, 1]),
        ("3, 1", [3, 1]),
        ("2,-1,0", [2]),
        ("GPU-1abc1def-0000", [1]),
        ("GPU-3abc", [3]),
        ("gpu-0ABC,GPU-2abc,", [0, 2]),
        ("0,GPU-3", [0, 3]),
        ("01", [1]),
    ],
)
def test_every_form_is_mapped_in_its_own_order(text: str | None, expected: list[int]) -> None:
    assert indices(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "hides every GPU"),
        (" ", "hides every GPU"),
        ("-1", "hides every GPU"),
        (",", "hides every GPU"),
        ("MIG-9f6a", "MIG instance"),
        ("0,MIG-GPU-1abc/1/0", "MIG instance"),
        ("4", "this machine has 0 to 3"),
        ("0,0", "twice"),
        ("0,GPU-0abc", "twice"),
        ("GPU-", "names 4 GPUs"),
        ("GPU-9", "names no GPU"),
        ("all", "neither a number nor a UUID"),
        ("NoDevFiles", "neither a number nor a UUID"),
        ("0,,1", "entry 1 is empty"),
        ("1.5", "neither a number nor a UUID"),
        ("²", "neither a number nor a UUID"),
    ],
)
def test_what_cannot_be_mapped_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(DeviceError, match=reason) as error:
        indices(text)
    assert "CUDA_VISIBLE_DEVICES" in str(error.value)
    assert "\n" not in str(error.value)


def test_numbers_are_ambiguous_where_models_are_mixed() -> None:
    for text in (None, "0,2"):
        with pytest.raises(DeviceError, match="PCI_BUS_ID"):
            indices(text, MIXED)
    assert indices("2,0", MIXED, order="PCI_BUS_ID") == [2, 0]
    assert indices("GPU-2,GPU-0abc", MIXED) == [2, 0]


@given(st.text(alphabet="01234-,GPUMIabc ²", max_size=12))
def test_any_text_is_mapped_without_repetition_or_refused(text: str) -> None:
    try:
        found = indices(text)
    except DeviceError:
        return
    assert found
    assert len(set(found)) == len(found)
