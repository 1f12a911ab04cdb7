"""Surface features of texts."""

import numpy as np

from selector.difficulty import surface_features
from selector.difficulty.surface import SURFACE_FEATURES


def test_counts_of_a_known_text() -> None:
    row = surface_features(["Is \\frac{12}{3} = 4?\nIs it"])[0]
    expected = {
        "characters": np.log1p(26),
        "words": np.log1p(6),
        "digits": np.log1p(4),
        "backslashes": np.log1p(1),
        "operators": np.log1p(1),
        "capitals": np.log1p(2),
        "question marks": np.log1p(1),
        "lines": np.log1p(1),
        "distinct words": np.log(5 / 6),
    }
    assert set(expected) == set(SURFACE_FEATURES)
    np.testing.assert_allclose(row, [expected[name] for name in SURFACE_FEATURES], rtol=1e-6)


def test_texts_that_are_missing_are_nan_rows_and_all_others_finite() -> None:
    features = surface_features([None, "", " ", "\n\n", "x", "数学 ∑ ½", "a" * 100_000])
    assert features.shape == (7, 9) and features.dtype == np.float32
    assert np.isnan(features[:2]).all()
    assert np.isfinite(features[2:]).all()
    assert surface_features([]).shape == (0, 9)
