"""Generated protocol of the service (package ``selector.v1``) and its table of named error reasons."""
