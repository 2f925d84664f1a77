import gc
import os
import select
import signal

from hydraplan.host import available_bytes, begin_as_child, die_with


def test_this_machine_has_memory():
    assert available_bytes() > 1 << 28


def test_a_child_ends_with_its_parent_however_that_ends():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        if os.fork() == 0:
            die_with(me)
            os.write(writer, str(os.getpid()).encode())
        signal.pause()
        os._exit(1)
    child = os.pidfd_open(int(os.read(reader, 20)))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([child], [], [], 10)[0], "the child is still there"
    for handle in (reader, writer, child):
        os.close(handle)


def test_a_child_never_collects_what_its_parent_left_behind():
    """It may own threads that are not in the child, which would wait for them for ever."""

    class Left:
        def __del__(self):
            ends.append(os.getpid())

    ends = []
    gc.collect()
    gc.disable()
    try:
        left = Left()
        left.itself = left
        del left
        me, (reader, writer) = os.getpid(), os.pipe()
        child = os.fork()
        if child == 0:
            begin_as_child(me)
            gc.collect()
            os.write(writer, bytes([len(ends)]))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reader, 1) == bytes([0])
        gc.collect()
        assert ends == [me]
    finally:
        gc.enable()
