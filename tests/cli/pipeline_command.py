"""`hydraplan pipeline` run in this process: what it prints, or why it refuses."""

from hydraplan.cli.app import run


def asked(capsys, *args):
    code = run(["pipeline", *args])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(capsys, code, *args):
    assert run(["pipeline", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    return err
