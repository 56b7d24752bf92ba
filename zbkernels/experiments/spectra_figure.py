def figure(metrics, path):
    path.write_bytes(b"")
