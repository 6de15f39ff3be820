"""Boxes: torchvision's operators on them, and what stands in the place of those whose result has no fixed size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import PackageError, Unsupported
from test_models import same

torchvision = pytest.importorskip("torchvision")

# Within the picture, over its edges, far outside of it, and without extent.
BOXES = torch.tensor(
    [[0, 1.0, 2.0, 6.5, 7.0], [1, -3.0, -4.0, 5.0, 20.0], [0, 30.0, 30.0, 40.0, 50.0], [1, 3.2, 3.2, 3.2, 3.2]],
)


@pytest.mark.parametrize("aligned", [False, True])
def test_features_of_boxes(aligned: bool) -> None:
    model = torchvision.ops.RoIAlign((3, 2), 0.7, 2, aligned).eval()
    pictures = torch.randn(2, 3, 6, 8)
    built = package.torch(model, (pictures, BOXES))
    same(built, model, pictures, BOXES)


def test_features_of_any_number_of_boxes_as_lists_of_each_picture() -> None:
    class Lists(nn.Module):
        def forward(self, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torchvision.ops.roi_align(x, [first, second], 2, sampling_ratio=3)
            return found

    count = torch.export.Dim("count", min=2, max=9)
    pictures, first, second = torch.randn(2, 1, 5, 4), BOXES[:2, 1:], BOXES[:3, 1:]
    built = package.torch(Lists().eval(), (pictures, first, second), dynamic_shapes=(None, {0: count}, None))
    same(built, Lists(), pictures, first, second)
    same(built, Lists(), pictures, BOXES[:3, 1:], second)


def test_samples_by_the_size_of_a_box_are_refused() -> None:
    model = torchvision.ops.RoIAlign(2, 1.0, -1).eval()
    with pytest.raises(Unsupported, match=r"roi_align with sampling_ratio=-1.*: set sampling_ratio, to 2"):
        package.torch(model, (torch.randn(1, 1, 4, 4), BOXES[:1]))


def boxes(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some that overlap, some with equal scores, one without extent, one that is not wanted at all."""
    corners, extents = torch.rand(count, 2) * 8, torch.rand(count, 2) * 6
    extents[1] = 0
    scores = (torch.rand(count) * 9).round() / 9
    scores[2] = -torch.inf
    return torch.cat([corners, corners + extents], 1), scores


@pytest.mark.parametrize("threshold", [0.1, 0.5, 1.0])
def test_the_best_boxes_are_torchvisions(threshold: float) -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        given, scores = boxes(24)
        wanted = torchvision.ops.nms(given, scores, threshold)
        for most in (1, 5, 30):
            indices, count = package.nms(given, scores, threshold, most)
            assert indices.dtype == torch.int64
            assert int(count) == min(most, len(wanted))
            assert indices.tolist() == [*wanted[:most].tolist(), *[-1] * (most - int(count))]
    # They share a tenth, which in 32 bits is a little more than 0.1.
    tenth = torch.tensor([[0.0, 0, 10, 1], [0, 0, 1, 1]]), torch.tensor([0.9, 0.8])
    assert int(package.nms(*tenth, threshold, 2)[1]) == len(torchvision.ops.nms(*tenth, threshold))


class Best(nn.Module):
    def forward(self, boxes: torch.Tensor, scores: torch.Tensor, kinds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        apart = boxes + (kinds * (boxes.max() + 1))[:, None]
        return package.nms(apart, scores, 0.3, 6)


def test_the_best_boxes_of_each_kind_are_kernels() -> None:
    torch.manual_seed(3)
    free = torch.export.Dim("boxes", min=4, max=100)
    kinds = torch.arange(12) % 3
    example = (*boxes(12), kinds)
    built = package.torch(Best().eval(), example, dynamic_shapes=({0: free}, {0: free}, {0: free}))
    for count in (12, 5):
        torch.manual_seed(count)
        given, scores = boxes(count)
        kinds = torch.arange(count) % 3
        wanted = torchvision.ops.batched_nms(given, scores, kinds, 0.3)[:6].tolist()
        found = built.interpret(boxes=given, scores=scores, kinds=kinds)
        assert found["output0"].tolist() == wanted + [-1] * (6 - len(wanted))
        assert int(found["output1"]) == len(wanted)


def test_several_pictures_at_once() -> None:
    torch.manual_seed(1)
    pairs = [boxes(9), boxes(9)]
    indices, counts = package.nms(torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs]), 0.2, 4)
    for at, (given, scores) in enumerate(pairs):
        assert indices[at, : counts[at]].tolist() == torchvision.ops.nms(given, scores, 0.2)[:4].tolist()


def test_how_many_boxes_are_kept_is_data() -> None:
    class Keeps(nn.Module):
        def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torchvision.ops.nms(boxes, scores, 0.5)
            return found

    with pytest.raises(Unsupported, match=r"nms.*at .*ops\.nms\(boxes.*package\.nms\(boxes, scores, iou_threshold, most\)"):
        package.torch(Keeps().eval(), boxes(6))
    with pytest.raises(PackageError, match="most is 0: nms gives 1 to 512 boxes"):
        package.nms(*boxes(6), 0.5, 0)
