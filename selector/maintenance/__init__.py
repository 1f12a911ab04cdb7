"""Looking after state directories: backing up, restoring and verifying them, also while a server writes to them."""
