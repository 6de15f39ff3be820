"""C = A B as a service of BentoML, which takes bytes as a file of a form; `bentoml serve` runs it."""

from pathlib import Path
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import ContentType


@bentoml.service(traffic={"timeout": 60}, workers=1)
class Matmul:
    @bentoml.api(route="/matmul")
    def matmul(self, tensors: Path) -> Annotated[bytes, ContentType("application/octet-stream")]:
        a, b = np.fromfile(tensors, np.float32).reshape(2, 128, 128)
        return (a @ b).tobytes()
