import os, sys
def take(fd, size):
    text = b""
    while len(text) < size:
        part = os.read(fd, size - len(text))
        if not part: os._exit(0)
        text += part
    return text
mode, fd = sys.argv[1:]
names = {"__name__": "berth_runner", "take": take}
exec(compile(take(int(fd), int.from_bytes(take(int(fd), 8), "big")), "<berth>", "exec"), names)
names[mode]()
