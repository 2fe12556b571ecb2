def refuse(item):
    raise ValueError("there is no " + item)
