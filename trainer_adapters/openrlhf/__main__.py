"""The launcher's command."""

import os
import sys

from trainer_adapters.openrlhf.launcher import main

main(sys.argv[1:], os.environ)
