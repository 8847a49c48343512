//! The bytes of the format, as `docs/format/base.md` says them.

use super::*;

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn page_of(fixture: &Fixture, pointer: &PagePointer) -> Vec<u8> {
    fixture.disk.file(PATH).bytes.lock().unwrap()[pointer.slot as usize * 4096..][..4096].to_vec()
}

#[test]
fn a_leaf_is_laid_out_as_documented() {
    let mut fixture = Fixture::new();
    fixture.update(
        1,
        [(b"ab1".to_vec(), Some(b"x".to_vec())), (b"ab22222".to_vec(), Some(b"yz".to_vec()))],
        0,
    );
    let root = fixture.base.tables()[0].1.root;
    let page = page_of(&fixture, &root);
    assert_eq!(crc32c::crc32c(&page), root.checksum);
    assert_eq!(page[..8], [1, 1, 0, 0, 2, 0, 2, 0]);
    assert_eq!(page[8..16], root.slot.to_le_bytes());
    assert_eq!(page[16..24], 1u64.to_le_bytes());
    assert_eq!(&page[32..34], b"ab");
    assert_eq!(page[36..40], 0x3100_0000u32.to_le_bytes());
    assert_eq!(page[40..44], 0x3232_3232u32.to_le_bytes());
    assert_eq!([u16_at(&page, 44), u16_at(&page, 46), u16_at(&page, 48)], [50, 54, 63]);
    assert_eq!(&page[50..54], b"\x01\x001x");
    assert_eq!(&page[54..63], b"\x05\x0022222yz");
}

#[test]
fn an_inner_page_is_laid_out_as_documented() {
    let mut fixture = Fixture::new();
    fixture.update(1, [b"a1", b"b2", b"c3"].map(|key| (key.to_vec(), Some(vec![7; 2000]))), 0);
    let table = fixture.base.tables()[0].1;
    let page = page_of(&fixture, &table.root);
    // One separator: the shortest between two leaves. Being alone it is all prefix.
    assert_eq!(page[..8], [2, 1, 1, 0, 1, 0, 1, 0]);
    assert!(matches!(page[32], b'b' | b'c'));
    assert_eq!(page[36..40], [0; 4]);
    assert_eq!([u16_at(&page, 40), u16_at(&page, 42)], [76, 76]);
    let child = PagePointer::decode(page[44..60].try_into().unwrap());
    assert_eq!(crc32c::crc32c(&page_of(&fixture, &child)), child.checksum);
}

#[test]
fn a_superblock_is_laid_out_as_documented() {
    let mut fixture = Fixture::new();
    fixture.update(1, [(key(1), Some(Vec::new()))], 0);
    fixture.store.publish_manifest(|| (b"manifest").to_vec()).unwrap();
    let number = fixture.store.superblock_number();
    let bytes = fixture.disk.file(PATH).bytes.lock().unwrap().clone();
    let at = (number % 2) as usize * 8192;
    let page = &bytes[at..at + 4096];
    assert_eq!(page, &bytes[at + 4096..at + 8192]);
    assert_eq!(&page[..8], b"BygnBase");
    assert_eq!(page[8..16], [1, 0, 0, 0, 0, 16, 0, 0]);
    assert_eq!(page[16..24], number.to_le_bytes());
    assert_eq!(page[24..32], 7u64.to_le_bytes());
    assert_eq!(page[32..68], fixture.base.root().encode());
    assert_eq!(page[100..104], 8u32.to_le_bytes());
    assert_eq!(&page[128..136], b"manifest");
    assert_eq!(page[4092..], crc32c::crc32c(&page[..4092]).to_le_bytes());
}
