//! Tokens and the grants that use them. Tokens are read once and cached as long as this server receives every change. A
//! token that is not in the cache is looked up in the database, so a token created by another server is valid at once.

use std::sync::Arc;

use thalweg_events::{
    EventsError, Grant, NewToken, Result, Scopes, Token, TokenDigest, TokenInfo, is_token_expired, time,
};
use thalweg_kit::random;
use thalweg_kit::time::Micros;
use tokio::sync::watch;
use tokio_postgres::Row;

use crate::columns::{get, is_plain};
use crate::connection_pool::Param;
use crate::namespace::PostgresNamespace;
use crate::store::StoreCore;

pub(crate) struct TokenRow {
    pub number: i64,
    digest: TokenDigest,
    scopes: Scopes,
    expires_at: Option<Micros>,
}

/// A token in use.
pub(crate) struct ActiveGrant {
    pub namespace: i64,
    pub valid: watch::Sender<()>,
}

/// Reads the columns `id, scopes (3), description, created_at, expires_at`, in this order.
fn info(row: &Row) -> Result<TokenInfo> {
    Ok(TokenInfo {
        id: get(row, 0)?,
        scopes: Scopes {
            read: get(row, 1)?,
            write: get(row, 2)?,
            admin: get(row, 3)?,
        },
        description: String::from_utf8_lossy(get(row, 4)?).into_owned(),
        created_at: get(row, 5)?,
        expires_at: get(row, 6)?,
    })
}

/// Reveals nothing about the token.
pub(crate) fn new_id() -> Result<String> {
    let mut chance = [0; 8];
    random::fill(&mut chance)
        .map_err(|error| EventsError::Unavailable(format!("no random numbers for an id: {error}")))?;
    Ok(format!("{:016x}", u64::from_be_bytes(chance)))
}

pub(crate) const INSERT: &str = "INSERT INTO tokens \
     (namespace, id, digest, may_read, may_write, may_admin, description, created_at, expires_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (namespace, digest) DO UPDATE SET \
     may_read = $4, may_write = $5, may_admin = $6, description = $7, expires_at = $9 \
     RETURNING id, may_read, may_write, may_admin, description, created_at, expires_at";

const LOAD: &str = "SELECT n.id, n.last_global, n.change, n.cleared, \
     t.number, t.digest, t.may_read, t.may_write, t.may_admin, t.expires_at \
     FROM namespaces n LEFT JOIN tokens t ON t.namespace = n.id WHERE n.name = $1";

/// Finds the token after comparing all of them, so that the duration does not depend on which one matches.
fn find<'a>(tokens: &'a [TokenRow], digest: &TokenDigest, now: Micros) -> Option<&'a TokenRow> {
    let mut found = None;
    for token in tokens {
        let is_this = token.digest.matches(digest) & !is_token_expired(token.expires_at, now);
        found = if is_this { Some(token) } else { found };
    }
    found
}

impl StoreCore {
    pub(crate) async fn grant(&self, token: &Token) -> Result<Option<Grant>> {
        let kept = self.kept(token.namespace()).filter(|_| self.hears_everything());
        if let Some((namespace, tokens, change)) = kept
            && let Some(grant) = self.grant_of(&namespace, &tokens, change, token)
        {
            return Ok(Some(grant));
        }
        // Concurrent changes are rare; a caller that meets one in every attempt is told that the token is not valid.
        for _ in 0..3 {
            let Some((namespace, tokens, change)) = self.load(token.namespace()).await? else {
                let nobody = [TokenRow {
                    number: 0,
                    digest: TokenDigest::from_bytes([0; 32]),
                    scopes: Scopes::default(),
                    expires_at: Some(Micros::MIN),
                }];
                find(&nobody, token.digest(), time::now());
                return Ok(None);
            };
            let grant = self.grant_of(&namespace, &tokens, change, token);
            if grant.is_some() || find(&tokens, token.digest(), time::now()).is_none() {
                return Ok(grant);
            }
        }
        Ok(None)
    }

    fn kept(&self, name: &str) -> Option<(Arc<PostgresNamespace>, Arc<Vec<TokenRow>>, u64)> {
        let namespace = self.opened(name)?;
        let (tokens, change) = {
            let cached = namespace.tokens.lock();
            (cached.tokens.clone()?, cached.change)
        };
        Some((namespace, tokens, change))
    }

    async fn load(&self, name: &str) -> Result<Option<(Arc<PostgresNamespace>, Arc<Vec<TokenRow>>, u64)>> {
        let name = if is_plain(name) { name } else { "" };
        // Taken before the tokens are read, so that a change in between is noticed.
        let before = self.opened(name).map(|namespace| namespace.tokens.lock().change);
        let mut link = self.links.lend().await?;
        let rows = link.query(LOAD, &[&name]).await?;
        drop(link);
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let namespace = self.open_row(name, first)?;
        let mut tokens = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(number) = get(row, 4)? else { continue };
            let digest = <[u8; 32]>::try_from(get::<&[u8]>(row, 5)?)
                .map_err(|_| EventsError::Damaged("a token in the database has an invalid digest".to_owned()))?;
            tokens.push(TokenRow {
                number,
                digest: TokenDigest::from_bytes(digest),
                scopes: Scopes {
                    read: get(row, 6)?,
                    write: get(row, 7)?,
                    admin: get(row, 8)?,
                },
                expires_at: get(row, 9)?,
            });
        }
        let tokens = Arc::new(tokens);
        let before = before.unwrap_or(0);
        let mut cached = namespace.tokens.lock();
        if cached.change == before {
            cached.tokens = Some(tokens.clone());
        }
        drop(cached);
        Ok(Some((namespace, tokens, before)))
    }

    /// `None` also if the tokens changed since they were read.
    fn grant_of(
        &self,
        namespace: &Arc<PostgresNamespace>,
        tokens: &[TokenRow],
        change: u64,
        token: &Token,
    ) -> Option<Grant> {
        let found = find(tokens, token.digest(), time::now())?;
        let mut grants = self.grants.lock();
        // A revocation first changes the tokens and then ends the grants.
        if namespace.tokens.lock().change != change || namespace.seen.is_ended() {
            return None;
        }
        let granted = grants.entry(found.number).or_insert_with(|| ActiveGrant {
            namespace: namespace.identity.id,
            valid: watch::Sender::new(()),
        });
        Some(Grant {
            namespace: namespace.clone(),
            scopes: found.scopes,
            expires_at: found.expires_at,
            valid: granted.valid.subscribe(),
        })
    }

    pub(crate) async fn add_token(&self, namespace: &str, token: NewToken) -> Result<TokenInfo> {
        let namespace = self.find(namespace).await?;
        let mut link = self.links.lend().await?;
        link.begin().await?;
        self.change_tokens(&mut link, &namespace, "c", 0).await?;
        let (id, now) = (new_id()?, time::now());
        let parameters: [Param<'_>; 9] = [
            &namespace.identity.id,
            &id,
            &token.digest.as_bytes().as_slice(),
            &token.scopes.read,
            &token.scopes.write,
            &token.scopes.admin,
            &token.description.as_bytes(),
            &now,
            &token.expires_at,
        ];
        let row = link
            .first(INSERT, &parameters)
            .await?
            .ok_or_else(|| namespace.not_found())?;
        link.commit().await?;
        namespace.forget_tokens();
        info(&row)
    }

    pub(crate) async fn list_tokens(&self, namespace: &str) -> Result<Vec<TokenInfo>> {
        let namespace = self.find(namespace).await?;
        let sql = "SELECT id, may_read, may_write, may_admin, description, created_at, expires_at FROM tokens \
             WHERE namespace = $1 AND (expires_at IS NULL OR expires_at > $2) ORDER BY number";
        let rows = namespace.ask(sql, &[&namespace.identity.id, &time::now()]).await?;
        rows.iter().map(info).collect()
    }

    pub(crate) async fn remove_token(&self, namespace: &str, id: &str) -> Result<bool> {
        let namespace = self.find(namespace).await?;
        if !is_plain(id) {
            return Ok(false);
        }
        let mut link = self.links.lend().await?;
        link.begin().await?;
        let sql = "DELETE FROM tokens WHERE namespace = $1 AND id = $2 RETURNING number";
        let Some(row) = link.first(sql, &[&namespace.identity.id, &id]).await? else {
            link.rollback().await?;
            return Ok(false);
        };
        let number: i64 = get(&row, 0)?;
        self.change_tokens(&mut link, &namespace, "t", number).await?;
        link.commit().await?;
        namespace.forget_tokens();
        self.grants.lock().remove(&number);
        Ok(true)
    }

    async fn change_tokens(
        &self,
        link: &mut crate::connection_pool::PooledConnection,
        namespace: &PostgresNamespace,
        what: &str,
        number: i64,
    ) -> Result<()> {
        let sql = "UPDATE namespaces SET tokens_change = tokens_change + 1 WHERE id = $1 \
             RETURNING pg_notify('thalweg_events', $2 || ' ' || id || ' ' || $3::bigint)";
        if link
            .first(sql, &[&namespace.identity.id, &what, &number])
            .await?
            .is_none()
        {
            link.rollback().await?;
            namespace.seen.end();
            return Err(namespace.not_found());
        }
        Ok(())
    }
}
