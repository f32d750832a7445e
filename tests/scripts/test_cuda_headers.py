# SPDX-License-Identifier: MIT OR Apache-2.0
"""scripts/symbols: its claims about a header that is made here."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from harness.ci import cuda_headers  # noqa: E402

HEADER = """
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_X = 7 } CUresult;
typedef struct { int first; unsigned long long second; } CUpair;
#define cuOld cuOld_v2
CUresult cuOld(CUpair *pair, int number);
"""


class Headers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "cuda.h").write_text(HEADER)

    def judge(self, *conditions):
        comparison = cuda_headers.Comparison()
        for condition in conditions:
            comparison.claim(condition, condition)
        return comparison.judge(self.folder)

    def test_a_wrong_offset_value_and_an_unknown_name_are_told_apart(self):
        right = ["CUDA_ERROR_X == 7", "offsetof(CUpair, second) == 8"]
        wrong = ["CUDA_ERROR_X == 8", "offsetof(CUpair, second) == 4"]
        lacking = ["CUDA_ERROR_Y == 8", "sizeof(CUtriple) == 8", "offsetof(CUpair, third) == 16"]
        self.assertEqual(self.judge(*right, *wrong, *lacking), ({x: x for x in wrong}, set(lacking)))

    def test_a_type_of_another_width_is_wrong(self):
        handles, structures = cuda_headers.aliases()
        for rust, cuda, fits in [
            ("u32", "int", True),
            ("usize", "int", False),
            ("CuStream", "void*", True),
            ("*mut u32", "unsigned int*", True),
            ("*mut u64", "unsigned int*", False),
            ("*const u32", "CUpair*", True),
            ("*const LaunchConfig", "CUpair*", True),
            ("*const LaunchConfig", "int", False),
        ]:
            wrong, lacking = self.judge(cuda_headers.width(rust, cuda, handles, structures))
            self.assertEqual((not wrong, lacking), (fits, set()), f"{rust} for {cuda}")
        self.assertIsNone(cuda_headers.width("CuUnheardOf", "int", handles, structures))

    def test_a_macro_leads_to_the_name_behind_it(self):
        self.assertEqual(cuda_headers.led_to(self.folder), {"cuOld_v2"})

    def test_each_constant_and_hook_of_the_interposer_is_read(self):
        named, troubles = cuda_headers.constants()
        self.assertEqual(troubles, [])
        values = {cuda: value for _, cuda, value in named}
        self.assertEqual(values["CUDA_ERROR_NO_DEVICE"], 100)
        self.assertEqual(values["CU_DEVICE_CPU"], -1)
        self.assertEqual(values["CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT"], 14)
        self.assertLessEqual({"cuLaunchKernel", "cuGetProcAddress_v2", "cuMemFree_v2"}, cuda_headers.hooked())


if __name__ == "__main__":
    unittest.main()
