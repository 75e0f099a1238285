import json
from pathlib import Path

import pytest

from worker_agent.commands.profile_model import DEFAULT_MODEL, read_model
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.hugging_face_config import config_document


def test_a_shape_is_read_as_it_is_typed() -> None:
    assert read_model(DEFAULT_MODEL) == DecoderConfig(256, 64, 2, 2)
    assert read_model("layers=4, hidden=128,heads=8,vocab=1000,kv-heads=2,ffn=96") == DecoderConfig(
        1000, 128, 4, 8, num_kv_heads=2, ffn_size=96
    )


def test_a_stored_model_gives_its_shape(tmp_path: Path) -> None:
    config = DecoderConfig(96, 32, 3, 4, num_kv_heads=2, ffn_size=48)
    document = config_document(config, max_position_embeddings=128, dtype="float32")
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert read_model(str(tmp_path)) == config
    assert read_model(str(tmp_path / "config.json")) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("layers=2", "--model lacks hidden, heads, vocab"),
        ("layers=2,layers=3,hidden=64,heads=2,vocab=9", "gives layers twice"),
        ("layers=2,hidden=x,heads=2,vocab=9", "has 'hidden=x'"),
        ("depth=2", "has 'depth=2'"),
        ("layers=2,hidden=64,heads=3,vocab=9", "does not divide into 3 heads"),
        ("nowhere", "--model nowhere: "),
    ],
)
def test_what_is_no_model_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_model(text)
