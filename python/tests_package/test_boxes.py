"""Boxes: torchvision's operators on them, and what stands in the place of those whose result has no fixed size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pappus import package
from pappus.package import Unsupported
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
