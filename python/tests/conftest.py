"""What the tests share."""

import sys


def pytest_report_header():
    import transship

    return [f"transship {transship.__version__}, devices: {transship.devices()}"]


def pytest_terminal_summary(terminalreporter):
    """Which way PyTorch was used, if it was."""
    import transship

    if "torch" in sys.modules:
        terminalreporter.write_line(f"PyTorch: {transship.backend_info()['torch']}")
