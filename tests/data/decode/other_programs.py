"""Small files that GDAL 3.6 (3.10 those with LZW and deflate), netpbm 11.01 and ImageMagick 6.9 have
written of `values`."""

from __future__ import annotations

from base64 import b85decode
from typing import Any

import numpy as np

HEIGHT, WIDTH = 3, 4


def values(bands: int, dtype: Any) -> np.ndarray:
    made = np.arange(HEIGHT * WIDTH * bands) * 7919
    if np.dtype(dtype).kind == "f":
        return (made / 7 - 1000).astype(dtype).reshape(HEIGHT, WIDTH, bands)
    low, high = max(np.iinfo(dtype).min, -(2**20)), min(np.iinfo(dtype).max, 2**20)
    return (made % (high - low + 1) + low).astype(dtype).reshape(HEIGHT, WIDTH, bands)


def encoded(name: str) -> bytes:
    return b85decode("".join(FILES[name][2].split()))


# Bands, type of the values, the file.
FILES = {
    "gdal_pixel_4": (
        4,
        "uint16",
        """
Nl7XI2mk;85dZ)I0{{U4000C4000320{{U400093000630{{d7008O$000940{{U400031000I70{{U400031000gF0ss{N0
0001000pI1ONd5001HZ000#M0{{U4000C4000&N0{{U400093000*O1ONd5003YB000^R1pom6007zm000{S1pom60080u00
0~T0{{U400031001Zf0{{U400031001!o0sssE000&N002?}0{{a6008m;002_~0{{d7008&^00000000310003100031000
31000mG5C9MW5C8xG000000RRC20RRC2dm?jaVQ^(4Iv`s#EFd#1AT(Wl004ApW@ct-Y-
KKRc>n+a?;hSg&0M^DtD2g*iP(7eXBJj9MN~9%Ba#xa0nqU7-wn<zy-
TcWn~933dB<qxR|Q5SHA5s~6M+Jt@xI{Q&-}g{tvZ}pi+FmMX|`C^NAxxmB{CFI190+=;jI
""",
    ),
    "gdal_tiled_13": (
        13,
        "uint16",
        """
Nl7XI2mk;86951K0{{U4000C4000320{{U400093000630{{&G00063000940{{U4000O8000I70{{U400031000gF0ss~O0
02$_000#M0{{U4000dD000^R1pom6008m;000{S1pom6008;`000~T0{{U400031001Zf0{{U400031001!o0sssE003kG00
2D!0{{U400062002S(0{{U4000mG002V)0{{U4000mG002Y*1ONd5003|S002b+1ONd50089x002?}0{{#F000~T002_~0{{
&G001-
r0000000031000310003100031000mG5C9MW5C9MW5C9MW5C9MW5C9MW5C9MW0000000000000000000000000000000RRC2
0RRC20RRC20RRC20RRC20RRC20RVd<b7*03Wg<EtTQM^%ATul=G+liFbZKU0W@&6?E^v7Oc${NkcrSO)_H4|a>eaJm?d-
f!@jYEE%+xi+q*!?pHQ{v66<RyFPrbQ)_RYG#{d|S;K?cT-
B0*o1uQ7}QJfO#;Iz6i`a;e7=^T%pTqKYgIpW`0YUYv7aH+AEOn^ESG?qRzn{;dgVh3-
unlR1~X+Isrfn(Ms`qW}+(n8?22+qtK2ukak!-sH6~b3#Y`^1NfQPkmUZ8$b0sCd^z|wJG|r%@x_F|GwR4KPa(Cv)L-
e+m&GyjDk@x3P!;w7zLwX6pVsVFbYP&C>RB!U=)mkQ7{Td!6?800PMh@$^
""",
    ),
    "gdal_big_endian": (
        1,
        "float32",
        """
O-
%qQ0000801*KI00RI3009650003200RI3009640003300RI30096X0003400RI3009690003700RI3009620003F00IC201^
NI0O|n|00aO4009610SEyV00RI3009620003N00RI3009640003O00aO4009610675~00jU5009610NMc?00jU5009610OA2
000RI3009620003f00RI3009620003o00IC201N;C0Q><x00RI3009620003~00RI3009640000000000009610096100961
00Da<b7*03Wg<EtTQe*mG+liFbZKU0W@&6?E^v7Oc$_;@#lYaq?5XN9_mZcp=-
lnDF+rZL6Pxo~x7^+Cdc%Uj_4g!CH~unDH$~+<H=_%a0Jz~2g8
""",
    ),
    "gdal_bigtiff": (
        2,
        "int32",
        """
Nl7aJ2mk;85C8xG000005dZ)H00000009F40RR91000001ONa4000000RaO50RR91000000{{R3000000s#X60ssI200000A
OIi$000000|5g70RR91000001%Lnm000001_1*A0RR91000000RR91000004gmrH6#xJL00000bO8VW000005djbY0RR9100
000mH_|&000006#)YP0RR91000000ssI20000076AhQ0RR91000000{{R3000007Xc6e0RR9100000V*mgE000008UY0W0RR
91000000RR910RR918vz9X0RR91000000RR910RR91903CW0RR91000000RR9100000C;<Zi0RR91000000RR9100000F#!S
q3;+NC00000iU9xs00000QUL=10RR91000000000000000Qvm}20ssI2000000ssO4000000000000000dm?jaVQ^(4Iv`sz
EFd#1AT(Wl004ApW@ct-Y-KKRc>w<a9q|9}9`OI(J@Eg{T=4(Ad+`6On(+Ucx$ysq*zo@!c=z!CXBP4QRyFbeMO5+sG;{I)B
a-p|60!0B0nqXPAMoz+|KAPr|IRG(|Gi7{|Ey~A|C@>O|B9&c|9Qvq{{
""",
    ),
    "netpbm_3": (
        3,
        "uint16",
        """
iBL{Q4GJ0x0000DNk~Le00004000035CQ-
I0BZ*2(f|MeR!KxbR0x>?O8~V00{{RX?>*jJ&1^+{Jc~4&E2<;98p#sb2>^36k|VJa&;jo74c{!zOTB8WiJPd3$9VweXa!d!
Mng4XB!Ls40>1Ix;QY@UzB;Xx&LK#3mwp2P0000<MNUMnLSTX
""",
    ),
    "netpbm_interlaced": (
        3,
        "uint16",
        """
iBL{Q4GJ0x0000DNk~Le00004000035CQ-
I0UQC<L;wH)SxH1eR0x>?P5`n00000U?>*iCxtiFC_jmy2Xa!d!MxX+|@!jA9T+MsDnycsm`1l9#07ErmB!LtB&l|ovtpIa0
k|VJa&;jo74c{!zOTB8WiJPd3$9aa-C2NI;_L=|y002ovPDHLkV1f
""",
    ),
    "magick_2": (
        2,
        "uint16",
        """
iBL{Q4GJ0x0000DNk~Le00004000035Ci}K08VYX4gdfEB}qg<R0!8&WMGhcZ+p)U4q3ie{HU<2_;C*gS-
w|%ulRls0Rip^B3&;$l}7*o002ovPDHLkV1f
""",
    ),
    "gdal_lzw_4": (
        4,
        "uint16",
        """
Nl7XI2mk;84FCWE0{{U4000C4000320{{U400093000630{{d700620000940{{U4000F5000I70{{U400031000pI1ONd50
06)M000#M0{{U4000C4000&N0{{U400093000*O1ONd5001%o000~T0{{U400031002D!0{{U400062002?}0{{a6006Q800
2_~0{{d7006iE00000000mG5C9MW5C8xG000000RRC20RRC2fB*mv@bh?j%`PtwaHwQ19Sw*>o(|^tHJmJ7lHxJAe0CJzZnN
Ku;M%lx9F#|oa1a
""",
    ),
    "gdal_deflate_float_2": (
        2,
        "float32",
        """
Nl7XI2mk;84FCWE0{{U4000C4000320{{U400093000630{{X5001BWAOHga0{{U4000O8000I70{{U400031000pI1ONd50
0620000#M0{{U400062000&N0{{U400093000*O1ONd5003hE000~T0{{U400031002D!0{{U400093002?}0{{U40000000
2_~0{{X5000930{{R3004NLJL25H#K^$FV7gCPXn#$FyHDYzkcMa7Tb18>PGZ=eH_6ovB+J0C^`x4zvWl{@_TPz7QBl#+g-2
99fxyenjR6eoJ%oe=1%-s}uUWfx?YgyVTOCwXR8>_}0sF-slm
""",
    ),
}
# Those that tifffile alone cannot decode.
NEED_IMAGECODECS = ("gdal_lzw_4", "gdal_deflate_float_2")
