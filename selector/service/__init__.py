"""The gRPC surface: translates between the protocol and the domain, and holds no rules of its own."""
