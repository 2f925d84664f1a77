import os
import select
import signal

from hydraplan.host import available_bytes, die_with


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
