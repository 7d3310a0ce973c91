"""Public addresses of the data sets, with the sizes and checksums that their publishers state.

A `Build` joins the published files with the code that converts them. Checksums: MNIST's are those of torchvision,
CIFAR-10's is on its authors' page, HAM10000's are Dataverse's, the eICU demo's are PhysioNet's SHA256SUMS.txt. YAIB and
XFed publish none: YAIB's file is known by the SHA-256 of our copy, and XFed's masks by their content.
"""

from __future__ import annotations

from grandrounds.data.convert import convert_cifar10, convert_ham10000, convert_mnist, convert_xfed
from grandrounds.data.download import Source
from grandrounds.data.eicu_demo import convert_eicu_demo
from grandrounds.data.images import pillow
from grandrounds.data.store import Build

_MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte.gz": (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
}
MNIST = Build(
    tuple(
        Source(f"mnist/{name}", tuple(f"{mirror}{name}" for mirror in _MNIST_MIRRORS), size, f"md5:{md5}")
        for name, (size, md5) in _MNIST_FILES.items()
    ),
    convert_mnist,
    notes=("converted from the four idx files to arrays; every value is as published",),
)

CIFAR10 = Build(
    (
        Source(
            "cifar10/cifar-10-binary.tar.gz",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            ),
            170_052_171,
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    convert_cifar10,
    notes=(
        "converted from the binary version (50,000 + 10,000 images) to arrays; nothing is unpickled",
        "`cifar-10` is the first 2,000 + 400 images of each class, as in version 0.1; `cifar-10-full` is all 60,000",
    ),
)

_DATAVERSE = "https://dataverse.harvard.edu/api/access/datafile"
HAM10000 = Build(
    (
        Source(
            "ham10000/HAM10000_metadata.csv",
            (f"{_DATAVERSE}/4338392?format=original",),
            690_218,
            "md5:8f85fb1aa29d80a2797247e434deb79d",
        ),
        Source(
            "ham10000/HAM10000_segmentations_lesion_tschandl.zip",
            (f"{_DATAVERSE}/3838943",),
            10_808_743,
            "md5:6e8d252e09cfdb0189199f15985a5b84",
        ),
        Source(
            "ham10000/HAM10000_images_part_1.zip",
            (f"{_DATAVERSE}/3172585",),
            1_366_522_108,
            "md5:4639bfa73ab251610530a97c898e6e46",
        ),
        Source(
            "ham10000/HAM10000_images_part_2.zip",
            (f"{_DATAVERSE}/3172584",),
            1_403_566_547,
            "md5:da43d6cc50f6613013be07e8986b384b",
        ),
    ),
    convert_ham10000,
    ready=lambda: pillow("converting HAM10000"),
    notes=(
        "images are reduced from 600 x 450 to 28 x 28 in one step (bicubic), masks by area",
        "results of version 0.1 were measured on images that were reduced to 200 x 150 first: pixels differ a little",
    ),
)

_PHYSIONET = "https://physionet.org/files/eicu-crd-demo/2.0.1"
_EICU_TABLES: dict[str, tuple[int | None, str]] = {
    "patient": (136_791, "15e1eb52169828e3cfff3b67132a087298de4d0365bbb31bb294f6043bffd474"),
    "hospital": (759, "4ed356f9c4e7c8ce80e89241697e94b77f21c2f325cd6ad126794b1e92805ef4"),
    "apacheApsVar": (68_194, "2dc6d63f9807c7e663ffa253998691605d527b702ac1db8cc5dda92308061e78"),
    "apachePatientResult": (214_122, "ce799692737f7a712c59aa8fbb9a302cee7c719887f0638caed3ae144b166821"),
}
_EICU_MORE: dict[str, tuple[int | None, str]] = {
    "vitalPeriodic": (None, "04dc093a2e77cd4c52ac7f2a47a8356fbb7456c7f15deb20d5abb1ca4303231d"),
    "vitalAperiodic": (2_619_980, "c294f46647990cb648b3ebfa589e83f330bdc0c2c922b5e8f23aa0ef99954635"),
    "lab": (None, "e06852850abeb65211bc22ac43f17121ba41b14656fac862396449af84d8273a"),
    "nurseCharting": (None, "475000d63d4ef883b2e891d7197997201300bedc13fcf23e67add1abee11dafe"),
    "intakeOutput": (None, "45db8ee0e64a4e3745284bde5828f740175770c45d00ea0c27daff789d18106e"),
}
EICU_DEMO_TABLES = tuple(
    Source(f"eicu_demo/{name}.csv.gz", (f"{_PHYSIONET}/{name}.csv.gz",), size, f"sha256:{sha256}")
    for name, (size, sha256) in {**_EICU_TABLES, **_EICU_MORE}.items()
)
"""The demo's raw tables that `rounds data build-eicu` reads."""

_YAIB = "https://raw.githubusercontent.com/rvandewater/YAIB"
EICU_DEMO = Build(
    (
        *EICU_DEMO_TABLES[: len(_EICU_TABLES)],
        Source(
            "eicu_demo/hourly.parquet",
            (
                f"{_YAIB}/28d57335ff59a5fe84bf04d768c3fb55d186f0e6/demo_data/los/eicu_demo/dyn.parquet",
                f"{_YAIB}/development/demo_data/los/eicu_demo/dyn.parquet",
                f"{_YAIB}/b8d00499dd40874b6ead293bddf27346d1520460/demo_data/sepsis/eicu_demo/dyn.parquet",
                f"{_YAIB}/512bd405c32a68b799a793e620721172f8876c76/demo_data/aki/eicu_demo/dyn.parquet",
            ),
            1_313_278,
            "sha256:347e5058469581bbc03fc3715c02cad103b1420086021a1a44266b618204397c",
        ),
    ),
    convert_eicu_demo,
    notes=(
        "vitals and laboratory values by the hour are YAIB's, made of PhysioNet's raw tables; the other tables are "
        "PhysioNet's own",
        "the first 24 hours count; stays below 24 hours, without hourly values or without an outcome are left out",
        '"> 89" years is 90, and -1 in APACHE\'s table is a gap',
        "eicu_24h.csv is, to the last digit, the table of version 0.1 (eicu_24h_rounded.csv where pandas rounds otherwise)",
    ),
)

XFED = Build(
    (
        Source(
            "xfed_masks/XFed.zip",
            (
                "https://codeload.github.com/XFed2023/XFed/zip/refs/heads/main",
                "https://codeload.github.com/XFed2023/XFed/zip/59280705449de323fc800267e1b026f388fc125f",
            ),
        ),
    ),
    convert_xfed,
    ready=lambda: pillow("converting XFed's masks"),
    notes=(
        "the authors publish images and masks in their repository and state no licence: do not pass them on",
        "places in the test sets of MNIST and CIFAR-10 and three corrected digits are ours, found by comparison",
    ),
)
