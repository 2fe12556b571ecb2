# What runs a function's source. It is started by boot.py and lives in the slot.
#
# serve: descriptor 3 is a stream to the agent. For each byte that comes, a
# child is forked that waits for the next job: 8 bytes of length, the job, and
# with its first byte the descriptors of stdout, stderr and the result. The
# child alone runs what the job brings; this process never does. It reports how
# the child ended, see report.
#
# once: descriptor 3 takes the result, descriptor 4 gives one job.
#
# The result is one byte when the job was taken, and when the function has
# ended 8 bytes of length, the SHA-256 of the job's key, of the length and of
# the payload, and the payload: JSON.

# What is imported here every fork copies and every child carries. So there is
# little of it, and what few runs need is imported by them, see own.
import _socket
import atexit
import gc
import mmap
import os
import sys

try:
    from _sha2 import sha256
except ImportError:
    try:
        from _sha256 import sha256
    except ImportError:
        from hashlib import sha256

KEY = 32  # bytes before the job's JSON
RESULT = 3
FAILED = 199  # the exit code when this program itself fails
MOST_RESULT = 16 << 20  # bytes
MOST_DEPTH = 500
MOST_MESSAGE = 1000  # characters
MOST_TRACEBACK = 20000

# Modules that take long to import and start no thread. Once a function has
# imported one, the server does too, before its next fork: from the interpreter
# and its environment only, never from where functions can write.
COSTLY = (
    "asyncio", "collections", "concurrent.futures", "contextlib", "csv", "dataclasses", "datetime", "decimal", "email.message", "enum",
    "functools", "hashlib", "http.client", "httpx", "inspect", "jinja2", "json", "letta_client", "logging", "pathlib",
    "pydantic", "pydantic.v1", "random", "re", "requests", "shutil", "ssl", "statistics", "subprocess", "tempfile", "traceback", "typing",
    "typing_extensions", "urllib.request", "uuid", "yaml", "zoneinfo",
)

VARKEYWORDS = 8  # inspect.CO_VARKEYWORDS
RUNNER = "<berth>"  # the file name that this was compiled under
Module = type(sys)
Function = type(lambda: None)
first_environment = dict(os.environ)
first_path = list(sys.path)


def codec():
    """What reads JSON, of text without space around it, and what writes it:
    those of json, which imports much beside them."""
    try:
        import _json

        class Context:
            strict = True
            object_hook = object_pairs_hook = None
            parse_float, parse_int = float, int
            parse_constant = {}.__getitem__  # there are none in a job

        def unknown(value):
            raise TypeError("not JSON: %r" % type(value))

        write = _json.make_encoder(None, unknown, _json.encode_basestring, None, ": ", ", ", False, False, False)
        return _json.make_scanner(Context), lambda value: "".join(write(value, 0))
    except (ImportError, AttributeError, TypeError):
        import json

        return json.JSONDecoder().scan_once, json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode


scan, encode = codec()


def own(name):
    """The interpreter's module of this name, wherever functions look first."""
    if name not in sys.modules:
        path, sys.path = sys.path, first_path
        try:
            __import__(name)
        finally:
            sys.path = path
    return sys.modules[name]


# ---- the server ----


def serve():
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 3)
    os.set_inheritable(3, False)
    seen = mmap.mmap(-1, len(COSTLY) + 1)  # shared with children: what they have imported, and whether anything
    score = raised_score()
    loaded = set()
    rehearse()
    gc.disable()  # what is collected here is copied in every child
    gc.collect()
    gc.freeze()
    share_code()
    global dumpable
    dumpable = dumpable_switch()
    dumpable(0)
    while control.recv(1):
        if seen[-1]:
            load(seen, loaded)
        pid = os.fork()
        if pid == 0:
            try:
                child(control, seen, score)
            except BaseException:
                own("traceback").print_exc()
            finally:
                os._exit(FAILED)
        try:
            control.sendall(report(pid))
        except OSError:
            return  # nobody waits any more


def share_code():
    """Have forks take the mapped code along. The kernel leaves out mappings of
    files that nothing was ever written to, and each child would meet a fault
    for each piece of code that it runs. So one byte of each is written with
    what it is. Without /proc that stays as it was."""
    try:
        with open("/proc/self/maps") as f:
            maps = [line.split() for line in f]
        memory = os.open("/proc/self/mem", os.O_RDWR)
    except OSError:
        return
    for fields in maps:
        if len(fields) < 6 or fields[1] not in ("r-xp", "r--p") or not fields[5].startswith("/"):
            continue
        at = int(fields[0].split("-")[0], 16)
        try:
            os.pwrite(memory, os.pread(memory, 1, at), at)
        except (OSError, OverflowError):
            continue
    os.close(memory)


def dumpable_switch():
    """What says whether others of the slot may look into this process, and
    change it. The server is closed to its children: what one of them wrote
    into it would be there for all that follow. A Python without _ctypes
    cannot close it."""
    try:
        import _ctypes

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
        return lambda yes: _ctypes.call_function(prctl, (4, yes, 0, 0, 0))
    except Exception:
        return lambda yes: None


def rehearse():
    """Do what every run does. A child that waits for its job has the pages of
    it by then, which it shares with the server until it writes to them."""
    names = {"__name__": "__main__"}
    job = scan('{"name":"f","source_code":"def f(x):\\n    return x\\n","args":{"x":1},"env":{"A":null}}', 0)[0]
    exec(compile(job["source_code"], "<tool f>", "exec", dont_inherit=True), names)
    positional, named, _ = bind(names["f"], job["args"], {})
    payload = encode({"return": plain(names["f"](*positional, **named))}).encode("utf-8", "replace")
    sha256(payload).digest()
    Module("__main__")
    environment_of(job)
    os.getcwd()


def report(pid):
    """Wait for the child; say its status, microseconds of CPU, kilobytes at
    most, and whether it has left processes behind."""
    while True:
        ended, status, usage = os.wait4(-1, 0)  # orphans are ours too
        if ended == pid:
            break
    left = 1
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        left = 0
    cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
    return b"".join((status.to_bytes(4, "big"), cpu.to_bytes(8, "big"), usage.ru_maxrss.to_bytes(8, "big"), left.to_bytes(1, "big")))


def load(seen, loaded):
    seen[-1] = 0
    for n, name in enumerate(COSTLY):
        if not seen[n] or n in loaded:
            continue
        loaded.add(n)
        try:
            __import__(name)
        except BaseException:
            pass  # the function that needs it says so
        gc.collect()
        gc.freeze()


def child(control, seen, score):
    gc.enable()
    os.setpgid(0, 0)
    modules = len(sys.modules) + ("linecache" not in sys.modules)  # see Lines
    rehearse()
    body, fds = receive(control)
    os.dup2(fds[0], 1)
    os.dup2(fds[1], 2)
    control.detach()
    os.dup2(fds[2], RESULT, inheritable=False)  # in the place of control
    for fd in fds:
        if fd > RESULT:
            os.close(fd)
    dumpable(1)
    if score:
        raise_score(score)
    run(body)
    if len(sys.modules) > modules:
        for n, name in enumerate(COSTLY):
            if name in sys.modules and not seen[n]:
                seen[n] = seen[-1] = 1
    leave()


def receive(control):
    """The next job with its descriptors. Without one, the agent has let go."""
    head, ancillary, _, _ = control.recvmsg(1 << 16, _socket.CMSG_SPACE(12))
    fds = []
    for level, kind, text in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += memoryview(text).cast("i").tolist()
    if not head:
        os._exit(0)
    while len(head) < 8:
        head += more(control.recv(8 - len(head)))
    size = int.from_bytes(head[:8], "big")
    parts, got = [head[8:]], len(head) - 8
    while got < size:
        parts.append(more(control.recv(min(size - got, 1 << 20))))
        got += len(parts[-1])
    return b"".join(parts), fds


def more(part):
    if not part:
        os._exit(0)
    return part


def raised_score():
    """What a child's OOM score has to be, so that it goes before its server."""
    try:
        with open("/proc/self/oom_score_adj") as f:
            score = int(f.read())
    except (OSError, ValueError):
        return 0
    return min(score + 50, 1000) if score > 0 else 0


def raise_score(score):
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"%d" % score)
        os.close(fd)
    except OSError:
        pass


def once():
    os.set_inheritable(RESULT, False)
    body = take(4, int.from_bytes(take(4, 8), "big"))
    os.close(4)
    score = raised_score()
    if score:
        raise_score(score)
    try:
        run(body)
    except BaseException:
        own("traceback").print_exc()
        os._exit(FAILED)
    leave()


def leave():
    """End like a program, but wait for no thread. The result is out already:
    whoever waits for it kills what takes too long here."""
    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass
    flush()
    os._exit(0)


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass


# ---- one run ----


def run(body):
    os.write(RESULT, b"T")
    key = body[:KEY]
    any_digits(True)
    job = scan(body[KEY:].decode(), 0)[0]
    del body
    any_digits(False)
    try:
        answer = perform(job)
    except SystemExit as e:
        answer = {"error": exited(e.code)}
    except BaseException as e:
        answer = {"error": raised(e)}
    flush()
    send(key, answer)


def send(key, answer):
    any_digits(True)
    try:
        sys.setrecursionlimit(10 * MOST_DEPTH)
        payload = encode(answer).encode("utf-8", "replace")
        if len(payload) > MOST_RESULT:
            raise ValueError("the result has %d bytes (max %d)" % (len(payload), MOST_RESULT))
    except BaseException as e:
        payload = encode({"error": raised(e)}).encode("utf-8", "replace")
    size = len(payload).to_bytes(8, "big")
    rest = memoryview(size + sha256(key + size + payload).digest() + payload)
    while rest:
        rest = rest[os.write(RESULT, rest):]


def any_digits(yes):
    """Whole numbers are exact, however long; the function finds the default."""
    change = getattr(sys, "set_int_max_str_digits", None)
    if change:
        change(0 if yes else sys.int_info.default_max_str_digits)


def exited(code):
    if code is None:
        code = 0
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    return {"kind": "exit", "name": "ProcessExit", "message": "exit code %d" % (code & 0xFF)}


def raised(e):
    try:
        message = str(e)
    except BaseException:
        message = "<no message: str() of the exception raised>"
    trace = ""
    try:
        tb = e.__traceback__
        while tb is not None and tb.tb_frame.f_code.co_filename == RUNNER:
            tb = tb.tb_next
        trace = traced(e, tb)[-MOST_TRACEBACK:]
    except BaseException:
        pass
    return {"kind": "exception", "name": type(e).__name__, "message": clean(message[:MOST_MESSAGE]), "traceback": clean(trace)}


def traced(e, tb):
    """The traceback as Python prints it. A function may have left nothing to
    import with, no descriptor say: then it is without the lines of source."""
    try:
        return "".join(own("traceback").format_exception(type(e), e, tb))
    except BaseException:
        said = Said()
        sys.stderr, before = said, sys.stderr
        try:
            sys.__excepthook__(type(e), e, tb)
        finally:
            sys.stderr = before
        return "".join(said)


class Said(list):
    write = list.append

    def flush(self):
        pass


class Lines(Module):
    """linecache, until somebody asks something of it: then the module itself,
    which knows the function's source as if it had been read from a file."""

    def __init__(self, file, source):
        super().__init__("linecache")
        self.__dict__["_berth_source"] = (file, source)

    def __getattr__(self, name):
        if sys.modules.get("linecache") is self:
            del sys.modules["linecache"]
        remember(own("linecache"), *self._berth_source)
        return getattr(own("linecache"), name)


def remember(linecache, file, source):
    linecache.cache.setdefault(file, (len(source), None, source.splitlines(True), file))


def perform(job):
    name, agent = job["name"], job.get("agent") or {}
    env = set_environment(job)
    main = Module("__main__")
    sys.modules["__main__"] = main
    sys.argv = [name]
    main.client = make_client(env)
    source = job["source_code"]
    file = "<tool %s>" % name
    main.__file__ = file
    if "linecache" in sys.modules:
        remember(sys.modules["linecache"], file, source)
    else:
        sys.modules["linecache"] = Lines(file, source)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)
    function = main.__dict__.get(name)
    if not callable(function):
        raise NameError("the source defines no function %r" % name)
    args = job.get("args") or {}
    schema = job.get("args_json_schema")
    if schema:
        args = {k: with_attributes(v, property_of(schema, k), schema) for k, v in args.items()}
    positional, named, state = bind(function, args, agent)
    result = function(*positional, **named)
    if hasattr(result, "__await__"):
        result = wait_for(result)
    answer = {"return": plain(result)}
    if state is not None and agent.get("return_state"):
        answer["state"] = pack_state(state, agent)
    return answer


def environment_of(job):
    """The environment of the run, and what of it differs from ours."""
    env, different = dict(first_environment), []
    for k, v in (job.get("env") or {}).items():
        if env.get(k) == v:
            continue
        different.append((k, v))
        if v is None:
            del env[k]
        else:
            env[k] = v
    if job.get("bin"):
        env["PATH"] = job["bin"] + os.pathsep + env.get("PATH", os.defpath)
        different.append(("PATH", env["PATH"]))
    return env, different


def set_environment(job):
    env, different = environment_of(job)
    for k, v in different:
        if v is None:
            del os.environ[k]
        else:
            os.environ[k] = v
    if "TZ" in env:
        import time

        time.tzset()
    # The server was started without these, so that nobody's file is its.
    if "PYTHONPATH" in env:
        sys.path[:0] = [p for p in env["PYTHONPATH"].split(os.pathsep) if p]
    if job.get("directory"):
        os.makedirs(job["directory"], exist_ok=True)
        os.chdir(job["directory"])
    try:
        sys.path.append(os.getcwd())
    except OSError:
        pass  # it was removed
    return env


def make_client(env):
    key = env.get("LETTA_API_KEY")
    if not key:
        return None
    try:
        from letta_client import Letta
    except ImportError:
        return None
    where = {"base_url": env["LETTA_BASE_URL"]} if env.get("LETTA_BASE_URL") else {}
    try:
        return Letta(api_key=key, **where)
    except TypeError:
        return Letta(token=key, **where)  # before 1.0


def bind(function, args, agent):
    """What to call the function with: what it declares and no more. The third
    is the agent's state, when the function declares it."""
    plainly = type(function) is Function and "__wrapped__" not in function.__dict__
    first, second, any_of_them = parameters_of_code(function.__code__) if plainly else parameters_of(function)
    if first is None:
        return (), args, None
    known, state = dict(args), None
    for name in first + second:
        if name == "agent_state":
            known[name] = state = open_state(agent)
        elif name == "agent_id":
            known[name] = agent.get("id")
    positional = []
    for name in first:
        if name not in known:
            break  # the call says what is missing, unless it has a default
        positional.append(known.pop(name))
    if not any_of_them:
        known = {n: known[n] for n in second if n in known}
    return positional, known, state


def parameters_of_code(code):
    """The names of the parameters that are positional only, those of the
    others, and whether it takes any: as inspect finds them, but it is slow."""
    names = code.co_varnames
    first, last = code.co_posonlyargcount, code.co_argcount + code.co_kwonlyargcount
    return names[:first], names[first:last], bool(code.co_flags & VARKEYWORDS)


def parameters_of(function):
    try:
        parameters = own("inspect").signature(function).parameters.values()
    except (TypeError, ValueError):
        return None, None, True
    return (
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
        tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def wait_for(awaitable):
    import asyncio

    async def wait():
        return await awaitable

    return asyncio.run(wait())


# ---- results ----


def clean(text):
    """Text as UTF-8 can carry it: lone surrogates are replaced."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain(value):
    """The value in types of JSON."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10 * MOST_DEPTH))  # a level takes a few calls
    try:
        return convert(value, set())
    finally:
        sys.setrecursionlimit(limit)


def convert(value, around):
    """The value below those in around, by id: one of them again is a cycle."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return clean(str.__str__(value))
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return number(float.__float__(value))
    parts = parts_of(value)
    if parts is None:
        return clean(str(value))
    if id(value) in around:
        raise ValueError("the result contains itself")
    if len(around) >= MOST_DEPTH:
        raise ValueError("the result is nested deeper than %d levels" % MOST_DEPTH)
    around.add(id(value))
    try:
        if not isinstance(parts, dict):
            return [convert(v, around) for v in parts]
        return {name_of(k): convert(v, around) for k, v in parts.items()}
    finally:
        around.discard(id(value))


def number(value):
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def parts_of(value):
    """A dict or a sequence of what the value is made of; None when it is one
    thing. pydantic is looked at where it is imported: without that nothing can
    be a model."""
    if isinstance(value, (dict, list, tuple)):
        return value
    if isinstance(value, Record):
        return vars(value)
    if isinstance(value, type):
        return None
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {n: getattr(value, n) for n, f in fields.items() if f._field_type.name == "_FIELD" and hasattr(value, n)}
    for module in ("pydantic", "pydantic.v1"):
        model = getattr(sys.modules.get(module), "BaseModel", None)
        if model is None or not isinstance(value, model):
            continue
        dumped = value.model_dump() if hasattr(value, "model_dump") else value.dict()
        return dumped if isinstance(dumped, (dict, list, tuple)) else [dumped]
    return None


def name_of(key):
    """A key as json writes it, and any other by str."""
    if isinstance(key, str):
        return clean(str.__str__(key))
    if key is None or key is True or key is False:
        return encode(key)
    if isinstance(key, float):
        return str(number(float.__float__(key)))
    return clean(str(int.__index__(key) if isinstance(key, int) else key))


# ---- arguments with attributes ----


class Record:
    """An object whose fields are attributes, and items too. A field that its
    schema has and that was not given is None, or its default."""

    __slots__ = ("__dict__", "_berth_optional")

    def __init__(self, fields, optional=()):
        object.__setattr__(self, "_berth_optional", frozenset(optional))
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name in self._berth_optional:
            return None
        raise AttributeError("the object has no field %r" % name)

    def __getitem__(self, name):
        return self.__dict__[name]

    def __setitem__(self, name, value):
        self.__dict__[name] = value

    def __delitem__(self, name):
        del self.__dict__[name]

    def __contains__(self, name):
        return name in self.__dict__

    def __iter__(self):
        return iter(self.__dict__)

    def __len__(self):
        return len(self.__dict__)

    def __eq__(self, other):
        return self.__dict__ == (vars(other) if isinstance(other, Record) else other)

    __hash__ = None

    def __repr__(self):
        return repr(self.__dict__)

    def __reduce__(self):
        return dict, (dict(self.__dict__),)

    def get(self, name, default=None):
        return self.__dict__.get(name, default)

    def keys(self):
        return self.__dict__.keys()

    def values(self):
        return self.__dict__.values()

    def items(self):
        return self.__dict__.items()

    def model_dump(self, **_):
        return plain(self)


def with_attributes(value, schema, root):
    schema = resolve(schema, root, value)
    if isinstance(value, list):
        items = schema.get("items")
        return [with_attributes(v, items, root) for v in value]
    if not isinstance(value, dict):
        return value
    fields = {k: with_attributes(v, property_of(schema, k), root) for k, v in value.items()}
    declared = schema.get("properties")
    optional = []
    for k, p in declared.items() if isinstance(declared, dict) else ():
        if k in fields:
            continue
        if isinstance(p, dict) and "default" in p:
            fields[k] = with_attributes(scan(encode(p["default"]), 0)[0], p, root)
        elif k not in (schema.get("required") or ()):
            optional.append(k)
    return Record(fields, optional)


def property_of(schema, name):
    declared = schema.get("properties") or {}
    if name in declared:
        return declared[name]
    return schema.get("additionalProperties")


def resolve(schema, root, value):
    """The schema that is about the value: references followed, and of several
    the first that can be meant."""
    for _ in range(64):  # references may go round
        if not isinstance(schema, dict):
            return {}
        ref, options = schema.get("$ref"), None
        for word in ("anyOf", "oneOf", "allOf"):
            options = options or schema.get(word)
        if isinstance(ref, str) and ref.startswith("#/"):
            schema = root
            for part in ref[2:].split("/"):
                schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
        elif isinstance(options, list) and "properties" not in schema and "items" not in schema:
            wanted = {dict: "object", list: "array"}.get(type(value))
            fit = [o for o in options if isinstance(o, dict) and (o.get("type") == wanted or "$ref" in o)]
            schema = (fit or [{}])[0]
        else:
            return schema
    return {}


# ---- the agent's state ----


def open_state(agent):
    state = agent.get("state")
    if state is None:
        return None
    if agent.get("state_encoding") == "pickle+base64":
        import base64
        import pickle

        return pickle.loads(base64.b64decode(state))
    try:
        from letta.schemas.agent import AgentState

        return AgentState.model_validate(state)
    except Exception:
        return shim(state, agent)  # the platform is not here, or knows another form


def pack_state(state, agent):
    if agent.get("state_encoding") == "pickle+base64":
        import base64
        import pickle

        return base64.b64encode(pickle.dumps(state)).decode()
    if hasattr(state, "model_dump") and not isinstance(state, Record):
        state = state.model_dump(mode="json")
    return plain(state)


def shim(state, agent):
    if not isinstance(state, dict):
        return state
    fields = {k: with_attributes(v, None, {}) for k, v in state.items()}
    fields.setdefault("id", agent.get("id"))
    memory = fields.get("memory")
    fields["memory"] = Memory(vars(memory) if isinstance(memory, Record) else {"blocks": []})
    return Record(fields)


class Memory(Record):
    """The blocks of an agent's memory: a list of objects with a label, or an
    object of them by label, under blocks."""

    __slots__ = ()

    def get_block(self, label):
        blocks = self._berth_blocks()
        if label not in blocks:
            raise KeyError("Block field %s does not exist (available sections = %s)" % (label, ", ".join(blocks)))
        return blocks[label]

    def get_blocks(self):
        return list(self._berth_blocks().values())

    def list_block_labels(self):
        return list(self._berth_blocks())

    def update_block_value(self, label, value):
        if not isinstance(value, str):
            raise ValueError("Provided value must be a string")
        self.get_block(label).value = value

    def set_block(self, block):
        block = block if isinstance(block, Record) else with_attributes(plain(block), None, {})
        held = self.__dict__.setdefault("blocks", [])
        if isinstance(held, Record):
            held[block.label] = block
            return
        for n, old in enumerate(held):
            if old.label == block.label:
                held[n] = block
                return
        held.append(block)

    def _berth_blocks(self):
        held = self.__dict__.get("blocks") or []
        if isinstance(held, Record):
            return {k: v if isinstance(v, Record) else Record({"label": k, "value": v}) for k, v in held.items()}
        return {b.label: b for b in held}
