"""A model directory for ``--encoder`` out of static word vectors: no transformer, so that a text costs microseconds.

    pip install wordllama==0.4.0.post1
    python examples/static_encoder.py static-encoder
    selector serve --encoder static-encoder

The package carries its vectors, 256 wide, and its tokeniser; nothing is downloaded. What such embeddings are worth
beside the default's: docs/prediction.md, "Encoders".
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, StaticEmbedding
from tokenizers import Tokenizer


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python examples/static_encoder.py OUTPUT_DIRECTORY\n")
        return 2
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        sys.stderr.write("the vectors are missing: pip install wordllama==0.4.0.post1\n")
        return 1
    package = Path(found.submodule_search_locations[0])
    (vectors,) = load_file(package / "weights" / "l2_supercat_256.safetensors").values()
    tokenizer = Tokenizer.from_file(str(package / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    words = StaticEmbedding(tokenizer, embedding_weights=vectors.astype("float32"))
    SentenceTransformer(modules=[words, Normalize()], device="cpu").save(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
