"""`python -m uc_stage`."""

from uc_stage.cli import main

main()
