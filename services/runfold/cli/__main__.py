"""``python -m runfold.cli``: the same as ``runfold``."""

from runfold.cli import main

main()
