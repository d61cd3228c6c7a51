"""What models of languages call the same one: lid.176 says `hu`, GlotLID and FineWeb2 `hun_Latn`.

Source: codes and default scripts of datatrove 0.10.1 (assets/tokenizer_assignment.csv), for the
labels of fastText's lid.176. Corrected are `als`, which is Alemannic there (ISO 639: gsw), and
`ku`, whose texts are Kurmanji; added are `bh`, `no` and `tl`. Left out, as they name several of
FineWeb2's languages: `nah`, `qu`, `sh`.
"""

from __future__ import annotations

_LABELS = dict(
    pair.split("=")
    for pair in """
    af=afr_Latn als=gsw_Latn am=amh_Ethi an=arg_Latn ar=arb_Arab arz=arz_Arab as=asm_Beng
    ast=ast_Latn av=ava_Cyrl az=azj_Latn azb=azb_Arab ba=bak_Cyrl bar=bar_Latn bcl=bcl_Latn
    be=bel_Cyrl bg=bul_Cyrl bh=bho_Deva bn=ben_Beng bo=bod_Tibt bpy=bpy_Beng br=bre_Latn
    bs=bos_Latn bxr=bxr_Cyrl ca=cat_Latn cbk=cbk_Latn ce=che_Cyrl ceb=ceb_Latn ckb=ckb_Arab
    co=cos_Latn cs=ces_Latn cv=chv_Cyrl cy=cym_Latn da=dan_Latn de=deu_Latn diq=diq_Latn
    dsb=dsb_Latn dty=dty_Deva dv=div_Thaa el=ell_Grek eml=eml_Latn en=eng_Latn eo=epo_Latn
    es=spa_Latn et=ekk_Latn eu=eus_Latn fa=fas_Arab fi=fin_Latn fr=fra_Latn frr=frr_Latn
    fy=fry_Latn ga=gle_Latn gd=gla_Latn gl=glg_Latn gn=gug_Latn gom=gom_Latn gu=guj_Gujr
    gv=glv_Latn he=heb_Hebr hi=hin_Deva hif=hif_Latn hr=hrv_Latn hsb=hsb_Latn ht=hat_Latn
    hu=hun_Latn hy=hye_Armn ia=ina_Latn id=ind_Latn ie=ile_Latn ilo=ilo_Latn io=ido_Latn
    is=isl_Latn it=ita_Latn ja=jpn_Jpan jbo=jbo_Latn jv=jav_Latn ka=kat_Geor kk=kaz_Cyrl
    km=khm_Khmr kn=kan_Knda ko=kor_Hang krc=krc_Cyrl ku=kmr_Latn kv=kpv_Cyrl kw=cor_Latn
    ky=kir_Cyrl la=lat_Latn lb=ltz_Latn lez=lez_Cyrl li=lim_Latn lmo=lmo_Latn lo=lao_Laoo
    lrc=lrc_Arab lt=lit_Latn lv=lvs_Latn mai=mai_Deva mg=plt_Latn mhr=mhr_Cyrl min=min_Latn
    mk=mkd_Cyrl ml=mal_Mlym mn=khk_Cyrl mr=mar_Deva mrj=mrj_Cyrl ms=zsm_Latn mt=mlt_Latn
    mwl=mwl_Latn my=mya_Mymr myv=myv_Cyrl mzn=mzn_Arab nap=nap_Latn nds=nds_Latn ne=npi_Deva
    new=new_Deva nl=nld_Latn nn=nno_Latn no=nob_Latn oc=oci_Latn or=ory_Orya os=oss_Cyrl
    pa=pan_Guru pam=pam_Latn pfl=pfl_Latn pl=pol_Latn pms=pms_Latn pnb=pnb_Arab ps=pbt_Arab
    pt=por_Latn rm=roh_Latn ro=ron_Latn ru=rus_Cyrl rue=rue_Cyrl sa=san_Deva sah=sah_Cyrl
    sc=srd_Latn scn=scn_Latn sco=sco_Latn sd=snd_Arab si=sin_Sinh sk=slk_Latn sl=slv_Latn
    so=som_Latn sq=als_Latn sr=srp_Cyrl su=sun_Latn sv=swe_Latn sw=swh_Latn ta=tam_Taml
    te=tel_Telu tg=tgk_Cyrl th=tha_Thai tk=tuk_Latn tl=fil_Latn tr=tur_Latn tt=tat_Cyrl
    tyv=tyv_Cyrl ug=uig_Arab uk=ukr_Cyrl ur=urd_Arab uz=uzn_Latn vec=vec_Latn vep=vep_Latn
    vi=vie_Latn vls=vls_Latn vo=vol_Latn wa=wln_Latn war=war_Latn wuu=wuu_Hani xal=xal_Cyrl
    xmf=xmf_Geor yi=ydd_Hebr yo=yor_Latn yue=yue_Hani zh=cmn_Hani
    """.split()
)
_SHORT = {long: short for short, long in _LABELS.items()}


def same_language(label: str) -> tuple[str, ...]:
    """Return a label and what others call the language, the given one first.

    A language and script that no label of lid.176 stands for has no other name.
    """
    other = _LABELS.get(label) or _SHORT.get(label)
    return (label, other) if other else (label,)
