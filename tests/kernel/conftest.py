"""The small models that these tests share."""

import pytest
from small_models import MakeSmall, small_model_maker


@pytest.fixture(scope="session")
def make_small(tmp_path_factory: pytest.TempPathFactory) -> MakeSmall:
    return small_model_maker(tmp_path_factory.mktemp("small"))
