"""What service and clients share: the generated protocol, package ``selector.v1``, and what both do with its bytes."""
