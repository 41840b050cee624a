"""Builds the compiled kernels where a C compiler with OpenMP is at hand; where none is, the package works without them."""

from setuptools import Extension, setup

KERNELS = "src/noiseproof/kernels"

setup(
    ext_modules=[
        Extension(
            "noiseproof.kernels._compiled",
            sources=[
                f"{KERNELS}/{name}.c"
                for name in (
                    *("clipping", "histories", "lattice", "lstm", "module", "neuron", "normals", "products"),
                    *("rows", "wide_normals", "wide_products"),
                )
            ],
            depends=[f"{KERNELS}/{name}.h" for name in ("kernels", "normals", "products", "vectors")],
            # Nothing here asks for errno or traps; products and sums may be fused, as torch's own kernels do.
            extra_compile_args=[
                *("-O3", "-std=c11", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
                *("-Wall", "-Wextra", "-Wno-psabi", "-Wno-unused-parameter"),
            ],
            extra_link_args=["-fopenmp"],
            optional=True,
        )
    ]
)
