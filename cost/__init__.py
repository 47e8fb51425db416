"""What it cost: catalogue, ledger, receipt. Pure folds over events; only the catalogue reads a file."""
