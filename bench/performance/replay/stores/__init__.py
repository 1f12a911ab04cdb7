"""One module per store: ``open_store`` starts its server and gives the client, in the environment of the store."""
