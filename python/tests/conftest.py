"""What the tests share."""


def pytest_report_header():
    import transship

    try:
        import torch
    except ImportError:
        return ["transship " + transship.__version__ + ", without PyTorch"]
    return [f"transship {transship.backend_info()}", f"CUDA devices: {torch.cuda.device_count()}"]
