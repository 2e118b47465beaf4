//! The reference shop as a site of the suite.

use async_trait::async_trait;
use chrono::{TimeDelta, Utc};
use lapse::conform::Site;
use lapse_participants::kit::db;
use lapse_participants::shop::{Line, NewOrder, OrderView, Shop, migrate};
use rust_decimal::Decimal;
use sqlx::postgres::PgPool;

use crate::database::TestDatabase;
use crate::support::live::order_ref;

const SKU: &str = "MUG-BLUE";
const WAREHOUSE: &str = "lille";

/// An open shop with its tables.
pub struct ShopSite {
    pub pool: PgPool,
    pub shop: Shop,
}

impl ShopSite {
    pub async fn open() -> ShopSite {
        let pool = db::pool(TestDatabase::create().await.options, 6);
        migrate(&pool).await.unwrap();
        let shop = Shop::new(pool.clone());
        let stocked = shop.stock_up(SKU, WAREHOUSE, Decimal::from(10_000)).await;
        stocked.unwrap();
        ShopSite { pool, shop }
    }
}

#[async_trait]
impl Site for ShopSite {
    async fn place(&self, order_id: &str) -> anyhow::Result<()> {
        let line = Line {
            sku: SKU.to_owned(),
            warehouse: WAREHOUSE.to_owned(),
            quantity: Decimal::from(2),
        };
        let order = NewOrder {
            order_id: Some(order_id.to_owned()),
            ..NewOrder::new("normal", vec![line], Utc::now() + TimeDelta::hours(1))
        };
        self.shop.place(&order).await??;
        Ok(())
    }

    async fn state(&self, order_id: &str) -> anyhow::Result<String> {
        let view = self.shop.show(&order_ref(order_id)).await?;
        let view = view.ok_or_else(|| anyhow::anyhow!("no such order"))?;
        Ok(stand(&view))
    }
}

/// Status, holds, and what came back in all.
fn stand(view: &OrderView) -> String {
    let holds: Vec<&str> = view.holds.iter().map(|hold| hold.state.as_str()).collect();
    let back: Decimal = view
        .ledger
        .iter()
        .map(|row| match row.direction.as_str() {
            "release" => row.quantity,
            _ => -row.quantity,
        })
        .sum();
    format!("{}, holds {holds:?}, {back} back", view.status)
}
