def table(m):
    return "x"
