"""Table, pictures and page, also when arms never reached the target or ran with a single seed."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from selector.testbed.pictures import DARK, LIGHT, Theme, difficulty_picture, learning_picture
from selector.testbed.record import ArmRun
from selector.testbed.report import render, verdict
from selector.testbed.table import COLUMNS, figures, rows, text_table


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
