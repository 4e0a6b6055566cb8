#!/usr/bin/env python3
"""What a driver makes of pools of device memory that another process imports: `python3 exported_pools.py`, on a device or a stand-in.

This process imports; the exporters are others, which it starts, tells what to do, and kills. Answers are printed. The exit status is 1
if tensors of an exporter that has gone do not stay what they are, which `transship-ipc` relies on.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

BYTES = 32 << 20
COPIES = 200
DESCRIPTOR = 1
MAPPED, REUSED = 0x5A, 0xA5

cuda = ctypes.CDLL("libcuda.so.1")
Handle, Address = ctypes.c_void_p, ctypes.c_uint64


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("allocation", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("security", Handle),
        ("largest", ctypes.c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 54),
    ]  # fmt: skip


Name = ctypes.c_ubyte * 64
DEVICE = Location(1, 0)


class Refused(Exception):
    pass


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        raise Refused(f"{name}: {(text.value or b'').decode()} ({code})")


def answer(work):
    """What a call comes to, and its result."""
    try:
        return "success", work()
    except Refused as error:
        return str(error), None


class Driver:
    def __init__(self):
        device, context = ctypes.c_int(), Handle()
        self.stream = Handle()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def wait(self):
        call("cuStreamSynchronize", self.stream)

    def pool(self, handles):
        pool, properties = Handle(), PoolProperties(allocation=1, handles=handles, location=DEVICE)
        call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        return pool

    def allocate(self, pool, byte):
        address = Address()
        call("cuMemAllocFromPoolAsync", ctypes.byref(address), ctypes.c_size_t(BYTES), pool, self.stream)
        return self.fill(address, byte)

    def fill(self, address, byte):
        call("cuMemsetD8Async", address, ctypes.c_ubyte(byte), ctypes.c_size_t(BYTES), self.stream)
        self.wait()
        return address

    def free(self, address):
        call("cuMemFreeAsync", address, self.stream)
        self.wait()

    def read(self, address):
        """What all bytes are; `None` if they differ."""
        host = ctypes.create_string_buffer(BYTES)
        call("cuMemcpyDtoHAsync_v2", host, address, ctypes.c_size_t(BYTES), self.stream)
        self.wait()
        return host.raw[0] if host.raw == host.raw[:1] * BYTES else None

    def import_pool(self, descriptor):
        pool = Handle()
        call("cuMemPoolImportFromShareableHandle", ctypes.byref(pool), Handle(descriptor), DESCRIPTOR, ctypes.c_uint64(0))
        return pool

    def find(self, pool, name):
        address = Address()
        call("cuMemPoolImportPointer", ctypes.byref(address), pool, ctypes.byref(Name(*name)))
        return address


def export(there):
    """The other process: sends its pool and the name of its memory, and does what it is told."""
    driver = Driver()
    pool, descriptor, name = driver.pool(DESCRIPTOR), ctypes.c_int(-1), Name()
    address = driver.allocate(pool, MAPPED)
    call("cuMemPoolExportToShareableHandle", ctypes.byref(descriptor), pool, DESCRIPTOR, ctypes.c_uint64(0))
    call("cuMemPoolExportPointer", ctypes.byref(name), address)
    socket.send_fds(there, [bytes(name)], [descriptor.value])
    while word := there.recv(1):
        said = "success"
        try:
            if word == b"f":
                driver.free(address)
            elif word == b"a":
                driver.allocate(pool, REUSED)
            elif word == b"d":
                call("cuMemPoolDestroy", pool)
        except Refused as error:
            said = str(error)
        there.send(said.encode())
    os._exit(0)


class Exporter:
    def __init__(self):
        self.here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen([sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()])
        there.close()
        self.name, descriptors, _, _ = socket.recv_fds(self.here, 64, 1)
        if len(self.name) != 64:
            raise Refused("the exporter has ended")
        self.descriptor = descriptors[0]

    def tell(self, word):
        self.here.send(word)
        return self.here.recv(200).decode()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def imported_twice(driver):
    exporter = Exporter()
    pool = driver.import_pool(exporter.descriptor)
    address = driver.find(pool, exporter.name)
    print("imported memory reads as", answer(lambda: driver.read(address)), "where it was filled with", MAPPED)
    said, other = answer(lambda: driver.import_pool(exporter.descriptor))
    print("the descriptor once more:", said)
    if other is not None:
        print("  it is the same pool:", other.value == pool.value)
        said, there = answer(lambda: driver.find(other, exporter.name))
        print("  the name in it:", said, "" if there is None else f"at the same address: {there.value == address.value}")
        if there is not None:
            print("  it reads as", answer(lambda: driver.read(there)))
            print("  it is freed:", answer(lambda: driver.free(there))[0])
            print("  what was there before reads as", answer(lambda: driver.read(address)))
    said, again = answer(lambda: driver.find(pool, exporter.name))
    print("the name once more in the first pool:", said, "" if again is None else f"at the same address: {again.value == address.value}")
    if again is not None:
        print("  it is freed:", answer(lambda: driver.free(again))[0])
        print("  what was there before reads as", answer(lambda: driver.read(address)))
    print("a name of 64 bytes of garbage:", answer(lambda: driver.find(pool, bytes(range(64))))[0])
    print("it is freed:", answer(lambda: driver.free(address))[0])
    print("the exporter frees it:", exporter.tell(b"f"))
    print("both end:", answer(lambda: call("cuMemPoolDestroy", pool))[0], exporter.tell(b"d"))
    exporter.here.close()
    exporter.process.wait()


def freed_too_early(driver):
    exporter = Exporter()
    pool = driver.import_pool(exporter.descriptor)
    address = driver.find(pool, exporter.name)
    print("the exporter frees what is still imported:", exporter.tell(b"f"))
    print("  it reads as", answer(lambda: driver.read(address)))
    print("  the exporter allocates as much, filled with", REUSED, exporter.tell(b"a"))
    print("  it reads as", answer(lambda: driver.read(address)))
    print("it is freed:", answer(lambda: driver.free(address))[0])
    exporter.here.close()
    exporter.process.wait()


def killed(driver, seconds):
    """Whether the memory of an exporter that is killed stays what it is: in copies that are under way, and while others take memory."""
    exporter = Exporter()
    pool = driver.import_pool(exporter.descriptor)
    address = driver.find(pool, exporter.name)
    own = driver.pool(0)
    copied = driver.allocate(own, 0)
    for _ in range(COPIES):
        call("cuMemcpyDtoDAsync_v2", copied, address, ctypes.c_size_t(BYTES), driver.stream)
    exporter.kill()
    said = answer(lambda: driver.read(copied))
    print(f"the exporter is killed while {COPIES} copies read its memory: the last one reads as {said}")
    stays = said == ("success", MAPPED)
    driver.free(copied)
    end, looks = time.monotonic() + seconds, 0
    while time.monotonic() < end and stays:
        others = [driver.allocate(own, REUSED) for _ in range(8)]
        successor = Exporter() if looks % 4 == 0 else None
        said = answer(lambda: driver.read(address))
        stays = said == ("success", MAPPED)
        for other in others:
            driver.free(other)
        if successor:
            successor.kill()
        looks += 1
    print(f"  what was imported reads as {said} after {looks} looks, while others take memory")
    print("  it is filled:", answer(lambda: driver.fill(address, REUSED))[0])
    print("  it is freed:", answer(lambda: driver.free(address))[0])
    print("  the imported pool ends:", answer(lambda: call("cuMemPoolDestroy", pool))[0])
    print("  memory of one's own is there:", answer(lambda: driver.free(driver.allocate(own, 1)))[0])
    call("cuMemPoolDestroy", own)
    return stays


def killed_before_it_is_found(driver):
    exporter = Exporter()
    exporter.kill()
    said, pool = answer(lambda: driver.import_pool(exporter.descriptor))
    print("a descriptor of an exporter that was killed before:", said)
    if pool is not None:
        said, address = answer(lambda: driver.find(pool, exporter.name))
        print("  the name in it:", said)
        if address is not None:
            print("  it reads as", answer(lambda: driver.read(address)))
            print("  it is freed:", answer(lambda: driver.free(address))[0])


def main():
    if len(sys.argv) > 1:
        return export(socket.socket(fileno=int(sys.argv[1])))
    driver = Driver()
    imported_twice(driver)
    stays = killed(driver, 10)
    killed_before_it_is_found(driver)
    freed_too_early(driver)
    return 0 if stays else 1


if __name__ == "__main__":
    sys.exit(main())
