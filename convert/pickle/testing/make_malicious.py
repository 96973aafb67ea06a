#!/usr/bin/env python3
"""Writes malicious.tsv of ../testdata and of ../../formats/torch/testdata: what would run code.

A line of the first is a name, what the reader must say, and a pickle in hexadecimal digits. Said
is a function of Python that the pickle calls, or, after a "!", the opcode at which the reader ends.
For each function, Python's own unpickler, which calls nothing here, looks up the same name. A line
of the second is a name, a part of a note or, after a "!", of an error, and an archive.

The functions are those of the rules of picklescan and fickling, one of each kind; the forms are
those that have led scanners astray. No pickle is loaded.
"""

import io
import pathlib
import struct
import zipfile
import zlib

from make_testdata import Inert

FOLDER = pathlib.Path(__file__).resolve().parent.parent
COMMAND = "echo executed > executed"

# Whatever starts a program or runs text, by itself or through another function.
FUNCTIONS = """
    os.system os.popen os.spawnl os.execv os.startfile posix.system posix.popen nt.system
    subprocess.Popen subprocess.run subprocess.check_output subprocess.getoutput
    commands.getoutput popen2.popen2 pty.spawn pexpect.run platform.popen
    builtins.eval builtins.exec builtins.compile builtins.open builtins.getattr builtins.breakpoint
    builtins.__import__ builtins.globals __builtin__.eval __builtin__.apply __builtin__.execfile
    runpy._run_code runpy.run_path runpy.run_module importlib.import_module
    importlib.machinery.SourceFileLoader imp.load_source zipimport.zipimporter pkgutil.resolve_name
    code.InteractiveInterpreter codeop.compile_command timeit.timeit trace.Trace bdb.Bdb
    pdb.run pydoc.pipepager doctest.debug_script cProfile.runctx profile.Profile.runctx
    asyncio.unix_events._UnixSubprocessTransport._start asyncio.create_subprocess_shell
    multiprocessing.Process concurrent.futures.ProcessPoolExecutor threading.Thread
    types.CodeType types.FunctionType functools.partial operator.attrgetter operator.methodcaller
    ctypes.CDLL cffi.FFI _ctypes.dlopen signal.signal sys.settrace
    socket.create_connection socket.socket http.client.HTTPSConnection urllib.request.urlopen
    requests.get aiohttp.ClientSession ftplib.FTP smtplib.SMTP telnetlib.Telnet imaplib.IMAP4
    xmlrpc.client.ServerProxy webbrowser.open webbrowser.BackgroundBrowser antigravity.geohash
    pip.main pip._internal.main ensurepip.bootstrap venv.create setuptools.sandbox.run_setup
    distutils.spawn.spawn distutils.file_util.write_file idlelib.pyshell.ModifiedInterpreter
    idlelib.run.Executive lib2to3.pgen2.grammar.Grammar.loads logging.config.listen
    shutil.rmtree shutil.copyfile pathlib.Path.write_text tempfile.mkstemp linecache.getline
    uuid._get_command_stdout site.execsitecustomize test.support.script_helper.assert_python_ok
    pickle.loads _pickle.loads dill.loads cloudpickle.loads joblib.load marshal.loads yaml.load
    torch.load torch.hub.load torch.jit.load torch.storage._load_from_bytes torch.compile
    torch._dynamo.guards.GuardBuilder.get torch._inductor.codecache.compile_file
    torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
    torch.utils.bottleneck.__main__.run_cprofile
    torch.utils.data.datapipes.utils.decoder.basichandlers
    torch.utils.collect_env.run torch.distributed.rpc.rpc_sync torch.multiprocessing.spawn
    numpy.load numpy.testing._private.utils.runstring numpy.f2py.crackfortran.getlincoef
    numpy.f2py.crackfortran._eval_length numpy.distutils.exec_command.exec_command
    tensorflow.io.write_file keras.layers.Lambda transformers.pipeline dask.compute
""".split()


def text(value):
    return b"\x8c" + bytes([len(value)]) + value.encode()


def pair(name):
    module, _, function = name.rpartition(".")
    return module, function


def named(name):
    """GLOBAL, as protocols 0 to 3 name a function."""
    module, function = pair(name)
    return b"c" + module.encode() + b"\n" + function.encode() + b"\n"


def from_stack(name):
    """STACK_GLOBAL, as protocols 4 and 5 do."""
    module, function = pair(name)
    return text(module) + text(function) + b"\x93"


SYSTEM = named("os.system")
ARGUMENT = text(COMMAND)
CALL = SYSTEM + ARGUMENT + b"\x85R"  # REDUCE
DOT = b"."


def long_text(value):
    return b"\x8d" + struct.pack("<Q", len(value)) + value.encode()


def nested(levels):
    data = b"\x80\x04" + CALL + DOT
    for _ in range(levels):
        data = (b"\x80\x04" + named("_pickle.loads") + b"B" + struct.pack("<I", len(data)) + data +
                b"\x85R" + DOT)
    return data


# Ways to reach os.system: what is said, and the pickle.
FORMS = {
    "reduce": ("os.system", CALL + DOT),
    "reduce_by_stack_global": ("os.system", from_stack("os.system") + ARGUMENT + b"\x85R."),
    "texts_of_python2": ("os.system", b"U\x02osU\x06system\x93" + ARGUMENT + b"\x85R."),
    "texts_of_eight_bytes": ("os.system", long_text("os") + long_text("system") + b"\x93" +
                             ARGUMENT + b"\x85R."),
    "names_from_the_memo": ("os.system", text("os") + b"\x940" + text("system") + b"\x940h\x00h\x01"
                            b"\x93" + ARGUMENT + b"\x85R."),
    "names_from_a_long_memo": ("os.system", text("os") + b"r\x00\x01\x00\x000" + text("system") +
                               b"r\x01\x01\x00\x000j\x00\x01\x00\x00j\x01\x01\x00\x00\x93" +
                               ARGUMENT + b"\x85R."),
    "a_memo_that_changes": ("os.system", text("json") + b"q\x000" + text("os") + b"q\x000h\x00" +
                            text("system") + b"\x93" + ARGUMENT + b"\x85R."),
    "a_name_twice": ("os.system", text("system") + b"2q\x0000" + text("os") + b"h\x00\x93" +
                     ARGUMENT + b"\x85R."),
    "an_attribute_of_a_module": ("torch.serialization.os.system", text("torch.serialization") +
                                 text("os.system") + b"\x93" + ARGUMENT + b"\x85R."),
    "an_attribute_of_a_class": ("asyncio.unix_events._UnixSubprocessTransport._start",
                                text("asyncio.unix_events") +
                                text("_UnixSubprocessTransport._start") + b"\x93)R."),
    "obj": ("os.system", b"(" + SYSTEM + ARGUMENT + b"o."),
    "newobj": ("subprocess.Popen", named("subprocess.Popen") + ARGUMENT + b"\x85\x81."),
    "newobj_ex": ("subprocess.Popen", named("subprocess.Popen") + ARGUMENT + b"\x85}" +
                  text("shell") + b"\x88s\x92."),
    "a_call_among_keywords": ("os.system", named("argparse.Namespace") + b")}" + text("x") + CALL +
                              b"s\x92."),
    "setstate": ("os.system", named("argparse.Namespace") + b")\x81}" + text("__setstate__") +
                 SYSTEM + b"sb" + ARGUMENT + b"\x85."),
    "a_call_in_a_state": ("os.system", named("argparse.Namespace") + b")\x81}" + text("x") + CALL +
                          b"sb."),
    "a_call_in_a_list": ("os.system", b"](" + CALL + b"e."),
    "a_call_in_a_tuple": ("os.system", b"(K\x01" + CALL + b"t."),
    "a_call_in_a_set": ("os.system", b"\x8f(" + CALL + b"\x90."),
    "a_call_as_a_value": ("os.system", b"}(" + text("weight") + CALL + b"u."),
    "a_call_as_a_key": ("os.system", b"}(" + CALL + b"K\x01u."),
    "a_call_of_items": ("os.system", named("collections.deque") + b")R(" + CALL + b"e."),
    "a_call_in_a_persistent_id": ("os.system", text("storage") + CALL + b"\x86Q."),
    "a_call_that_is_discarded": ("os.system", CALL + b"0}."),
    "a_call_below_a_mark": ("os.system", b"(" + CALL + b"1}."),
    "a_call_that_is_remembered": ("os.system", CALL + b"\x940}" + text("w") + b"h\x00s."),
    "a_call_behind_frames": ("os.system", b"\x80\x04\x95" + struct.pack("<Q", len(CALL) + 1) +
                             CALL + DOT),
    "a_protocol_in_the_middle": ("os.system", b"\x80\x02" + SYSTEM + b"\x80\x04" + ARGUMENT +
                                 b"\x85R."),
    "getattr": ("builtins.getattr", named("builtins.getattr") + named("builtins.__import__") +
                text("os") + b"\x85R" + text("system") + b"\x86R" + ARGUMENT + b"\x85R."),
    "attrgetter": ("operator.attrgetter", named("operator.attrgetter") + text("system") +
                   b"\x85R" + named("importlib.import_module") + text("os") + b"\x85R\x85R" +
                   ARGUMENT + b"\x85R."),
    "partial": ("functools.partial", named("functools.partial") + SYSTEM + ARGUMENT +
                b"\x86R)R."),
    "map": ("builtins.map", named("builtins.list") + named("builtins.map") + SYSTEM + b"]" +
            ARGUMENT + b"a\x86R\x85R."),
    "a_pickle_in_a_pickle": ("_pickle.loads", nested(1)),
    "a_pickle_in_a_pickle_in_a_pickle": ("_pickle.loads", nested(2)),
    "a_compressed_pickle": ("zlib.decompress", named("_pickle.loads") + named("zlib.decompress") +
                            b"C" + bytes([len(zlib.compress(CALL + DOT))]) +
                            zlib.compress(CALL + DOT) + b"\x85R\x85R."),
    "another_pickle_first": ("os.system", CALL + DOT + b"}."),
    # The reader ends, after what Python would have executed.
    "inst": ("!INST", b"(" + ARGUMENT + b"ios\nsystem\n."),
    "ext1": ("!EXT1", b"\x82\x01" + ARGUMENT + b"\x85R."),
    "ext2": ("!EXT2", b"\x83\x01\x00" + ARGUMENT + b"\x85R."),
    "ext4": ("!EXT4", b"\x84\x01\x00\x00\x00" + ARGUMENT + b"\x85R."),
    "next_buffer": ("!NEXT_BUFFER", CALL + b"\x97."),
    "readonly_buffer": ("!READONLY_BUFFER", CALL + b"\x98."),
    "a_persistent_id_as_text": ("!PERSID", CALL + b"Pstorage\n."),
    "texts_in_lines": ("!UNICODE", b"Vos\nVsystem\n\x93" + ARGUMENT + b"\x85R."),
    "strings_in_lines": ("!STRING", b"S'os'\nS'system'\n\x93" + ARGUMENT + b"\x85R."),
    "a_memo_in_lines": ("!PUT", text("os") + b"p0\n" + text("system") + b"\x93."),
    "an_unknown_opcode": ("!0xff", CALL + b"\xff."),
    "text_after_a_call": ("!0x3c", CALL + b"<html>"),
    "no_end": ("!expected 1 more bytes", CALL),
    "a_protocol_of_the_future": ("!PROTO", CALL + b"\x80\x63."),
    "a_frame_beyond_the_end": ("!FRAME", CALL + b"\x95\xff\xff\x00\x00\x00\x00\x00\x00."),
    "a_missing_memo": ("!BINGET", CALL + b"h\x63."),
    "an_empty_stack": ("!STOP", CALL + b"0."),
    "a_name_that_is_no_text": ("!STACK_GLOBAL", CALL + b"N\x93."),
    "a_state_of_a_list": ("!BUILD", b"]" + CALL + b"b."),
    "items_of_nothing": ("!SETITEMS", CALL + b"0(NNu."),
    "a_text_beyond_the_end": ("!BINUNICODE8", CALL + b"\x8d" + b"\xff" * 8 + b"."),
}


class Names(Inert):
    """Python's unpickler, which notes the names that it looks up."""

    def __init__(self, data):
        super().__init__(io.BytesIO(data))
        self.names = []

    def find_class(self, module, name):
        self.names.append(f"{module}.{name}")
        return super().find_class(module, name)


def looked_up(data):
    reader = Names(data)
    try:
        reader.load()
    except Exception:  # after what was looked up
        pass
    return reader.names


def archive(files, method=zipfile.ZIP_STORED):
    """A zip archive as torch.save() writes it, without its padding."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as writer:
        for name, contents in files.items():
            writer.writestr(zipfile.ZipInfo(name), contents, method)
    return buffer.getvalue()


def of_torch(contents, **files):
    """The archive of a pickle."""
    return archive({"model/data.pkl": contents, "model/version": b"3\n", **files})


def changed(data, at, to):
    return data[:at] + to + data[at + len(to):]


def archives():
    whole = of_torch(CALL + DOT)
    central = whole.index(b"PK\x01\x02")
    yield "a_call", "objects of os.system: the file", whole
    yield "a_call_in_a_state_dict", "objects of os.system: weight", of_torch(
        FORMS["a_call_as_a_value"][1])
    for form in ("getattr", "attrgetter", "partial"):
        said = f"objects of a result of {FORMS[form][0]}: the file"
        yield form, said, of_torch(FORMS[form][1])
    yield "inst", "!INST", of_torch(FORMS["inst"][1])
    yield "a_wrong_checksum", "!model/data.pkl", changed(whole, whole.index(b"executed"), b"E")
    yield "a_checksum_of_zero", "!model/data.pkl", changed(
        changed(whole, 14, bytes(4)), central + 16, bytes(4))
    yield "encrypted_in_the_directory", "!is encrypted", changed(whole, central + 8, b"\x01")
    yield "encrypted_in_its_header", "!directory and local header differ", changed(
        whole, 6, b"\x01")
    yield "compressed", "!compressed", archive({"model/data.pkl": CALL * 20 + DOT},
                                               zipfile.ZIP_DEFLATED)
    yield "two_pickles", "!two files data.pkl", archive(
        {"model/data.pkl": b"}.", "evil/data.pkl": CALL + DOT})
    yield "one_name_twice", "!model/data.pkl occurs twice", archive(
        {"model/data.pkl": b"}.", "model/data.pkX": CALL + DOT}).replace(b"data.pkX", b"data.pkl")
    yield "another_name_in_the_header", "!directory and local header differ", changed(
        whole, 30, b"MODEL")
    yield "bytes_before_the_archive", "!does not match the directory", b"PK\x03\x04" + whole
    yield "an_archive_behind_an_archive", "!offset", whole + of_torch(b"}.")
    yield "a_program_of_torchscript", "!a TorchScript program", archive(
        {"model/data.pkl": b"}.", "model/constants.pkl": CALL + DOT})
    yield "another_pickle", "!without data.pkl", archive({"model/evil.pkl": CALL + DOT})
    yield "seven_zip", "!not written by torch.save()", (
        b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(24) + CALL + DOT)
    yield "a_pickle_alone", "!not written by torch.save()", b"\x80\x02" + CALL + DOT
    magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    yield "a_call_in_place_of_the_version", "!an unknown version of torch's legacy form", (
        magic + CALL + DOT)
    yield "a_call_in_the_legacy_form", "objects of os.system: the file", (
        magic + b"\x80\x02M\xe9\x03.\x80\x02}.\x80\x02" + CALL + b".\x80\x02].")


def lines(rows):
    return "".join(f"{name}\t{said}\t{data.hex()}\n" for name, said, data in rows)


def main():
    rows = [(name, name, named(name) + ARGUMENT + b"\x85R.") for name in FUNCTIONS]
    rows += [(name, said, data) for name, (said, data) in FORMS.items()]
    for name, said, data in rows:
        assert said.startswith("!") or said in looked_up(data), name
    (FOLDER / "testdata/malicious.tsv").write_text(lines(rows))
    torch = FOLDER.parent / "formats/torch/testdata/malicious.tsv"
    torch.write_text(lines(archives()))
    assert not pathlib.Path("executed").exists()


if __name__ == "__main__":
    main()
