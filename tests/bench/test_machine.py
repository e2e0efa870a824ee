"""What a benchmark says about the machine, from the system's own text files."""

import os

from bench.machine import cpu_name, kilobytes, peak_megabytes, this_machine

CPUINFO = """processor\t: 0
vendor_id\t: SomeVendor
model name\t: Fast Processor 9000
flags\t\t: fpu sse avx2 avx512f aes

processor\t: 1
model name\t: Fast Processor 9000
"""


def test_the_cpu_is_named_with_its_widest_vectors() -> None:
    assert cpu_name(CPUINFO) == "Fast Processor 9000 (AVX-512)"
    assert cpu_name(CPUINFO.replace(" avx512f", "")) == "Fast Processor 9000 (AVX2)"
    assert cpu_name(CPUINFO.replace("avx2 avx512f ", "")) == "Fast Processor 9000"
    assert cpu_name("") == ""


def test_kernel_kilobytes_become_megabytes() -> None:
    assert kilobytes("Name:\tx\nVmHWM:\t  1000000 kB\nVmRSS:\t 1 kB\n", "VmHWM") == 1024.0
    assert kilobytes("Name:\tx\n", "VmHWM") is None


def test_memory_of_a_process_that_is_not_there_is_unknown() -> None:
    assert peak_megabytes(2**22 + 1) is None


def test_the_machine_at_hand_is_described() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert machine.torch[0].isdigit()
    assert str(os.environ.get("OMP_NUM_THREADS", "not set")) in str(machine)
